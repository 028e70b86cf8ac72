-- Delete rows of locks that were released or have expired, at most so many.
--
-- $1 guard_ms   only what expired longer ago than this
-- $2 kept_ms    and was acquired longer ago than this: a key in use keeps its row
-- $3 how many at most
-- $4 only this key, or NULL for all
--
-- returns the number of deleted rows
--
-- SKIP LOCKED: a row that another statement or protect() has is left for later.
WITH deleted AS (
    DELETE FROM {locks} WHERE key IN (
        SELECT l.key FROM {locks} AS l
        WHERE l.expires_at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000) - $1::bigint
            AND l.acquired_at_ms < floor(extract(epoch FROM clock_timestamp()) * 1000) - $2::bigint
            AND ($4::text IS NULL OR l.key = $4::text)
        LIMIT $3::bigint
        FOR UPDATE SKIP LOCKED
    ) RETURNING 1
)
SELECT count(*) FROM deleted
