-- Count the live locks and the fence counters, without a scan. Only reads.
--
-- KEYS[1] live    sorted set: storage keys by expiry
-- KEYS[2] tally   number of fence counters ever created
--
-- returns {liveLocks, fenceCounters}
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
return {
  redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', nowMs), '+inf'),
  tonumber(redis.call('GET', KEYS[2]) or '0'),
}
