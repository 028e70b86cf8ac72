-- One page of the live locks of a prefix, soonest to expire first, their number, and the time.
--
-- $1 head           the prefix with its colon, or ''
-- $2 end            the text after all names with this head, or NULL
-- $3 key limit      a longer name is stored hashed, and then cannot be compared
-- $4 tolerance_ms
-- $5 limit
-- $6 offset
--
-- returns at least one row: total, now, and then the columns of a lock, or NULLs
WITH instant AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
), live AS MATERIALIZED (
    SELECT l.* FROM {locks} AS l, instant
    WHERE l.expires_at_ms > instant.now_ms - $4::bigint
        AND l.key >= $1 AND ($2::text IS NULL OR l.key < $2::text)
        AND (l.key = $1 || l.user_key OR octet_length($1 || l.user_key) > $3::int)
)
SELECT (SELECT count(*) FROM live), instant.now_ms,
    page.user_key, page.lock_id, page.expires_at_ms, page.acquired_at_ms, page.fence, page.holder
FROM instant LEFT JOIN (
    SELECT * FROM live ORDER BY live.expires_at_ms, live.key LIMIT $5::bigint OFFSET $6::bigint
) AS page ON true
ORDER BY page.expires_at_ms, page.key
