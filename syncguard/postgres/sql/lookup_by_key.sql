-- The row of a lock, by its key, and the time.
--
-- $1 key
SELECT l.user_key, l.lock_id, l.expires_at_ms, l.acquired_at_ms, l.fence, l.holder,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM {locks} AS l WHERE l.key = $1
