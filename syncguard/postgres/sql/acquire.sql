-- Acquire a free lock: increment its fence counter, write its row. Never waits for a locked row.
--
-- key, fence_key   the names of the lock and of its counter
-- new_lock_id      the id of the new holder
-- new_user_key, new_holder
-- ttl_ms, tolerance_ms
-- fence_max        the largest fence that may be returned
-- has_floor        raise the counter to at least the server's time * 10
-- wait_ms          above 0: the caller will wait this long if refused, so set the flag
-- flag_ms          how long the flag is set beyond that, so that few refused callers write
--
-- returns outcome   'acquired', with fence and expires_at_ms
--                   'held', with remaining_ms if that is known; negative within the tolerance
--                   'exhausted': the counter is at its maximum
--
-- VOLATILE, in READ COMMITTED: each statement sees what was committed before it began, and the time
-- is read after the row is locked.
CREATE OR REPLACE FUNCTION {acquire}(
    lock_key text, fence_name text, new_lock_id text, new_user_key text, new_holder text,
    ttl_ms bigint, tolerance_ms bigint, fence_max bigint, has_floor boolean,
    wait_ms bigint, flag_ms bigint,
    OUT outcome text, OUT new_fence text, OUT new_expires_at_ms bigint, OUT remaining_ms bigint
) LANGUAGE plpgsql VOLATILE SET lock_timeout = {lock_timeout} AS $function$
DECLARE
    held record;
    is_new boolean;
    now_ms bigint;
    counter bigint;
BEGIN
    outcome := 'held';
    SELECT l.lock_id, l.expires_at_ms, l.fence, l.waiting_until_ms INTO held
        FROM {locks} AS l WHERE l.key = lock_key FOR UPDATE SKIP LOCKED;
    is_new := NOT FOUND;
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    IF is_new THEN
        -- Absent, or locked by another statement or by protect().
        SELECT l.lock_id, l.expires_at_ms, l.waiting_until_ms INTO held
            FROM {locks} AS l WHERE l.key = lock_key;
        IF FOUND THEN
            IF held.expires_at_ms > now_ms - tolerance_ms THEN
                remaining_ms := held.expires_at_ms - now_ms;
            END IF;
            IF wait_ms > 0 AND held.waiting_until_ms < now_ms + wait_ms THEN
                UPDATE {locks} AS l SET waiting_until_ms = now_ms + wait_ms + flag_ms
                    WHERE l.key = (
                        SELECT m.key FROM {locks} AS m WHERE m.key = lock_key
                        FOR NO KEY UPDATE SKIP LOCKED
                    );
            END IF;
            RETURN;
        END IF;
    ELSIF held.expires_at_ms > now_ms - tolerance_ms THEN
        IF held.lock_id = new_lock_id THEN
            -- The client sent this request twice, because it lost the reply.
            outcome := 'acquired';
            new_fence := held.fence;
            new_expires_at_ms := held.expires_at_ms;
            RETURN;
        END IF;
        remaining_ms := held.expires_at_ms - now_ms;
        -- A later waiter never shortens the flag of an earlier one.
        IF wait_ms > 0 AND held.waiting_until_ms < now_ms + wait_ms THEN
            UPDATE {locks} AS l SET waiting_until_ms = now_ms + wait_ms + flag_ms
                WHERE l.key = lock_key;
        END IF;
        RETURN;
    ELSIF held.lock_id = new_lock_id THEN
        RETURN;  -- sent twice, and released meanwhile: the id is spent
    END IF;

    INSERT INTO {fences} AS f (fence_key, fence)
        VALUES (fence_name, CASE WHEN has_floor THEN now_ms * 10 ELSE 1 END)
        ON CONFLICT (fence_key) DO UPDATE
            SET fence = GREATEST(f.fence + 1, CASE WHEN has_floor THEN now_ms * 10 ELSE 0 END)
            WHERE f.fence < fence_max
        RETURNING f.fence INTO counter;
    IF counter IS NULL THEN
        outcome := 'exhausted';
        RETURN;
    END IF;
    new_fence := lpad(counter::text, 15, '0');
    -- Once more: the counter's row may have been locked by another acquire.
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    new_expires_at_ms := now_ms + ttl_ms;

    IF is_new THEN
        INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, holder)
            VALUES (lock_key, new_lock_id, new_expires_at_ms, now_ms, new_fence, new_user_key,
                new_holder)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            new_fence := NULL;
            new_expires_at_ms := NULL;
            RETURN;
        END IF;
        IF floor(extract(epoch FROM clock_timestamp()) * 1000) > now_ms + 5 THEN
            -- The insert waited for another transaction, which then failed: date the grant anew.
            now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
            new_expires_at_ms := now_ms + ttl_ms;
            UPDATE {locks} AS l
                SET expires_at_ms = new_expires_at_ms, acquired_at_ms = now_ms
                WHERE l.key = lock_key;
        END IF;
    ELSE
        UPDATE {locks} AS l
            SET lock_id = new_lock_id, expires_at_ms = new_expires_at_ms, acquired_at_ms = now_ms,
                fence = new_fence, user_key = new_user_key, holder = new_holder
            WHERE l.key = lock_key;
    END IF;
    outcome := 'acquired';
END
$function$;
