-- Whether a lock is live.
--
-- $1 key
-- $2 tolerance_ms
SELECT EXISTS (
    SELECT FROM {locks} AS l WHERE l.key = $1
        AND l.expires_at_ms > floor(extract(epoch FROM clock_timestamp()) * 1000) - $2::bigint
)
