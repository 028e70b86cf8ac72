-- How many locks are live, and how many fence counters there are, without a scan.
--
-- KEYS[1] live    sorted set: storage keys by expiry
-- KEYS[2] tally   how many fence counters were made
--
-- returns {liveLocks, fenceCounters}
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000))
return {redis.call('ZCARD', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or '0')}
