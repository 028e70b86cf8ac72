-- Transfer a lock to a new lock id, with the same fence. The old id becomes invalid.
--
-- old_lock_id, new_lock_id
-- new_holder     the new label, or NULL to keep the old one
-- ttl_ms
-- key_head       the prefix with its colon, or '': locks of other prefixes are not found
--
-- returns outcome   'adopted', with fence, expires_at_ms and user_key; 'expired'; or 'missing'
--
-- Changes a unique column, and so waits for an open protect() of the old holder.
CREATE OR REPLACE FUNCTION {adopt}(
    old_lock_id text, new_lock_id text, new_holder text, ttl_ms bigint, key_head text,
    OUT outcome text, OUT old_fence text, OUT new_expires_at_ms bigint, OUT old_user_key text
) LANGUAGE plpgsql VOLATILE SET lock_timeout = {lock_timeout} AS $function$
DECLARE
    held record;
    now_ms bigint;
BEGIN
    outcome := 'missing';
    SELECT l.key, l.expires_at_ms, l.fence, l.user_key INTO held
        FROM {locks} AS l WHERE l.lock_id = old_lock_id AND {is_own} FOR UPDATE;
    IF NOT FOUND THEN
        -- The client may have sent this request twice, because it lost the reply.
        SELECT l.expires_at_ms, l.fence, l.user_key INTO held
            FROM {locks} AS l WHERE l.lock_id = new_lock_id AND l.expires_at_ms > 0;
        IF FOUND THEN
            outcome := 'adopted';
            old_fence := held.fence;
            new_expires_at_ms := held.expires_at_ms;
            old_user_key := held.user_key;
        END IF;
        RETURN;
    END IF;
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    IF held.expires_at_ms = 0 THEN
        RETURN;
    END IF;
    IF held.expires_at_ms <= now_ms THEN
        outcome := 'expired';
        RETURN;
    END IF;
    outcome := 'adopted';
    old_fence := held.fence;
    old_user_key := held.user_key;
    new_expires_at_ms := now_ms + ttl_ms;
    UPDATE {locks} AS l
        SET lock_id = new_lock_id, expires_at_ms = new_expires_at_ms,
            holder = COALESCE(new_holder, l.holder)
        WHERE l.key = held.key;
END
$function$;
