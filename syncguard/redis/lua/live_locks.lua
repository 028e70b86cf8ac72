-- A page of the live locks, soonest to expire first. Costs what it returns, whatever else is stored.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] offset
-- ARGV[2] limit    at most 1000: Lua cannot unpack many more
-- (also read: the locks that the set names)
--
-- returns {seconds, microseconds, {json, ...}}
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', nowMs)
while true do
  local names = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
  if #names == 0 then
    return {time[1], time[2], {}}
  end
  local locks = redis.call('MGET', unpack(names))
  -- A lock that a client in another language released is gone without its entry.
  local gone = {}
  for i, name in ipairs(names) do
    if not locks[i] then
      gone[#gone + 1] = name
    end
  end
  if #gone == 0 then
    return {time[1], time[2], locks}
  end
  redis.call('ZREM', KEYS[1], unpack(gone))
end
