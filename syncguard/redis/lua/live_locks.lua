-- Return a page of the live locks, soonest to expire first, and their total number. The cost
-- depends on the number of returned locks, not on the number of stored keys.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] offset
-- ARGV[2] limit    at most 1000: Lua cannot unpack many more; 0: only count
-- (also read: the locks that the set names)
--
-- returns {seconds, microseconds, {json, ...}, liveLocks}
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', nowMs)
local locks = {}
-- Read again after each removal: when a client in another language releases a lock, its entry
-- stays in the set. With the limit 0 the range would end at -1, which means the last entry.
while ARGV[2] ~= '0' do
  local names = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
  if #names == 0 then
    break
  end
  local found = redis.call('MGET', unpack(names))
  local gone = {}
  for i, name in ipairs(names) do
    if not found[i] then
      gone[#gone + 1] = name
    end
  end
  if #gone == 0 then
    locks = found
    break
  end
  redis.call('ZREM', KEYS[1], unpack(gone))
end
return {time[1], time[2], locks, redis.call('ZCARD', KEYS[1])}
