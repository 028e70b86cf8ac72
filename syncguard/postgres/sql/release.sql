-- Release locks by their ids. Does not delete: expires_at_ms becomes 0, and cleanup deletes later.
--
-- lock_ids      the ids, each at most once
-- tolerance_ms
-- key_head      the prefix with its colon, or '': locks of other prefixes are not found
--
-- returns one row for each id, in their order:
--   outcome   'released', 'expired', or 'missing'
--   wake_key  the lock's key, if somebody waits for it
--
-- A DELETE would wait for an open protect() (FOR KEY SHARE), so that a lock released inside of its own
-- transaction would wait for itself. Rows are locked in the order of their keys: two callers cannot
-- wait for each other.
CREATE OR REPLACE FUNCTION {release}(lock_ids text[], tolerance_ms bigint, key_head text)
    RETURNS TABLE (outcome text, wake_key text)
    LANGUAGE plpgsql VOLATILE SET lock_timeout = {lock_timeout} AS $function$
DECLARE
    now_ms bigint;
    held record;
BEGIN
    IF cardinality(lock_ids) = 1 THEN
        -- Simple statements, whose plans are kept. Those below are planned at each call.
        SELECT l.key, l.expires_at_ms, l.waiting_until_ms INTO held
            FROM {locks} AS l WHERE l.lock_id = lock_ids[1] AND {is_own} FOR NO KEY UPDATE;
        now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
        outcome := 'missing';
        IF held.expires_at_ms > now_ms - tolerance_ms THEN
            UPDATE {locks} AS l SET expires_at_ms = 0 WHERE l.key = held.key;
            outcome := 'released';
            IF held.waiting_until_ms > now_ms THEN
                wake_key := held.key;
            END IF;
        ELSIF held.expires_at_ms > 0 THEN
            outcome := 'expired';
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM 1 FROM {locks} AS l WHERE l.lock_id = ANY (lock_ids) AND {is_own}
        ORDER BY l.key FOR NO KEY UPDATE;
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    RETURN QUERY
        WITH released AS (
            UPDATE {locks} AS l SET expires_at_ms = 0
                WHERE l.lock_id = ANY (lock_ids) AND l.expires_at_ms > now_ms - tolerance_ms
                    AND {is_own}
                RETURNING l.lock_id, l.key, l.waiting_until_ms
        )
        SELECT
            CASE
                WHEN r.lock_id IS NOT NULL THEN 'released'
                WHEN l.expires_at_ms > 0 THEN 'expired'
                ELSE 'missing'
            END,
            CASE WHEN r.waiting_until_ms > now_ms THEN r.key END
        FROM unnest(lock_ids) WITH ORDINALITY AS wanted (id, place)
        LEFT JOIN released AS r ON r.lock_id = wanted.id
        LEFT JOIN {locks} AS l ON l.lock_id = wanted.id AND {is_own}
        ORDER BY wanted.place;
END
$function$;
