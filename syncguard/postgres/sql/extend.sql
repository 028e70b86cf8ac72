-- Set the expiry of locks to a TTL from now. Never brings back a lock whose TTL has ended, also not
-- within the tolerance.
--
-- lock_ids, ttls_ms   pairs
-- key_head            the prefix with its colon, or '': locks of other prefixes are not found
--
-- returns one row for each id, in their order:
--   outcome            'extended', 'expired', or 'missing'
--   new_expires_at_ms
--
-- The time is read after all rows are locked. FOR NO KEY UPDATE passes an open protect(); the rows are
-- locked in the order of their keys, so that two callers cannot wait for each other.
CREATE OR REPLACE FUNCTION {extend}(lock_ids text[], ttls_ms bigint[], key_head text)
    RETURNS TABLE (outcome text, new_expires_at_ms bigint)
    LANGUAGE plpgsql VOLATILE SET lock_timeout = {lock_timeout} AS $function$
DECLARE
    now_ms bigint;
    held record;
BEGIN
    IF cardinality(lock_ids) = 1 THEN
        -- Simple statements, whose plans are kept. Those below are planned at each call.
        SELECT l.key, l.expires_at_ms INTO held
            FROM {locks} AS l WHERE l.lock_id = lock_ids[1] AND {is_own} FOR NO KEY UPDATE;
        now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
        outcome := 'missing';
        IF held.expires_at_ms > now_ms THEN
            new_expires_at_ms := now_ms + ttls_ms[1];
            UPDATE {locks} AS l SET expires_at_ms = new_expires_at_ms WHERE l.key = held.key;
            outcome := 'extended';
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
        WITH wanted AS (
            SELECT * FROM unnest(lock_ids, ttls_ms) WITH ORDINALITY AS w (id, ttl_ms, place)
        ), extended AS (
            UPDATE {locks} AS l SET expires_at_ms = now_ms + w.ttl_ms
                FROM wanted AS w
                WHERE l.lock_id = w.id AND l.expires_at_ms > now_ms AND {is_own}
                RETURNING l.lock_id, l.expires_at_ms
        )
        SELECT
            CASE
                WHEN e.lock_id IS NOT NULL THEN 'extended'
                WHEN l.expires_at_ms > 0 THEN 'expired'
                ELSE 'missing'
            END,
            e.expires_at_ms
        FROM wanted AS w
        LEFT JOIN extended AS e ON e.lock_id = w.id
        LEFT JOIN {locks} AS l ON l.lock_id = w.id AND {is_own}
        ORDER BY w.place;
END
$function$;
