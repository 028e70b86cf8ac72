-- The two tables. Setup runs this; running it again changes nothing.
--
-- {locks}   one row for each key that was locked lately. A row with expires_at_ms = 0 was released.
--           Only lock_id is unique beside the key: a heartbeat changes no indexed column, and so
--           passes an open protect() (FOR KEY SHARE) and needs no new index entry.
--           There is no index on expires_at_ms for the same reason, and half of each page is free
--           for new versions of its rows.
-- {fences}  one counter for each key that was ever locked. Rows are never deleted: a counter that
--           starts again would hand out old fences.
--
-- COLLATE "C": an upgrade of the system's collations can break the order of a text index, and then
-- two rows with one key, which are two holders, are possible.
CREATE TABLE IF NOT EXISTS {locks} (
    key text COLLATE "C" PRIMARY KEY,
    lock_id text COLLATE "C" NOT NULL UNIQUE,
    expires_at_ms bigint NOT NULL,
    acquired_at_ms bigint NOT NULL,
    fence text COLLATE "C" NOT NULL,
    user_key text COLLATE "C" NOT NULL,
    holder text,
    waiting_until_ms bigint NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE IF NOT EXISTS {fences} (
    fence_key text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05
);
