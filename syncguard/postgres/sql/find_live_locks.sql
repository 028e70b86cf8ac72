-- Live locks of a prefix in the order of their keys, from a key on, and the time.
--
-- $1 head, $2 end, $3 key limit, $4 tolerance_ms   as in live_locks.sql
-- $5 after            only keys after this one
-- $6 fence            only this fence, or ''
-- $7 acquired_at_ms   only this time of acquisition, or NULL
-- $8 how many at most
SELECT l.key, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    l.user_key, l.lock_id, l.expires_at_ms, l.acquired_at_ms, l.fence, l.holder
FROM {locks} AS l
WHERE l.expires_at_ms > floor(extract(epoch FROM clock_timestamp()) * 1000) - $4::bigint
    AND l.key >= $1 AND ($2::text IS NULL OR l.key < $2::text)
    AND (l.key = $1 || l.user_key OR octet_length($1 || l.user_key) > $3::int)
    AND l.key > $5
    AND ($6 = '' OR l.fence = $6)
    AND ($7::bigint IS NULL OR l.acquired_at_ms = $7::bigint)
ORDER BY l.key
LIMIT $8::bigint
