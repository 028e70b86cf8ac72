-- A page of the live locks, soonest to expire first. Costs what it returns, whatever else is stored.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] offset
-- ARGV[2] limit    at most 1000: Lua cannot unpack many more
-- (also read: the locks that the set names)
--
-- returns {seconds, microseconds, {json or nil, ...}}
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', nowMs)
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
local locks = {}
if #names > 0 then
  locks = redis.call('MGET', unpack(names))
end
return {time[1], time[2], locks}
