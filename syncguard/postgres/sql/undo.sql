-- Make sure that a lock id holds nothing: not now, and not by a request that arrives later.
--
-- spent_lock_id
-- tombstone_key   a key that no lock has: the row under it keeps the id in use
-- kept_ms         how long cleanup keeps that row
--
-- returns wake_key   the key of the lock that was released, if somebody waits for it
--
-- lock_id is unique, so an acquire with this id that arrives later cannot store it.
CREATE OR REPLACE FUNCTION {undo}(
    spent_lock_id text, tombstone_key text, kept_ms bigint, OUT wake_key text
) LANGUAGE plpgsql VOLATILE SET lock_timeout = {lock_timeout} AS $function$
DECLARE
    now_ms bigint;
    released record;
BEGIN
    FOR attempt IN 1..3 LOOP
        now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
        UPDATE {locks} AS l SET expires_at_ms = 0 WHERE l.lock_id = spent_lock_id
            RETURNING l.key, l.waiting_until_ms INTO released;
        IF FOUND THEN
            IF released.waiting_until_ms > now_ms THEN
                wake_key := released.key;
            END IF;
            RETURN;
        END IF;
        -- Waits for a transaction that is storing this id. If it commits, release it above.
        INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
            VALUES (tombstone_key, spent_lock_id, 0, now_ms + kept_ms, '', '')
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END
$function$;
