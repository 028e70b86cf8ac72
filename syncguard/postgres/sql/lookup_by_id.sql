-- The row of a lock, by its lock id, and the time.
--
-- $1 lock_id
-- $2 head      the prefix with its colon, or '': locks of other prefixes are not found
SELECT l.user_key, l.lock_id, l.expires_at_ms, l.acquired_at_ms, l.fence, l.holder,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM {locks} AS l, (SELECT $2::text AS key_head) AS given
WHERE l.lock_id = $1 AND {is_own}
