-- Whether a lock is held. Only reads, unless cleanup is enabled.
--
-- KEYS[1] lock         the lock's JSON
-- KEYS[2] live         sorted set: storage keys by expiry
-- ARGV[1] toleranceMs
-- ARGV[2] guardMs      delete a lock that expired longer ago than this; empty: never delete
-- ARGV[3] indexHead    start of the index's name; the lock id follows it
-- (cleanup also deletes the expired lock's index, but never a fence counter)
--
-- returns 1 held; 0 free
local held = redis.call('GET', KEYS[1])
if not held then
  return 0
end
local data = cjson.decode(held)
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
if data.expiresAtMs > nowMs - ARGV[1] then
  return 1
end
if ARGV[2] ~= '' and nowMs - data.expiresAtMs > tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], KEYS[1])
  local indexKey = ARGV[3] .. data.lockId
  if redis.call('GET', indexKey) == KEYS[1] then
    redis.call('DEL', indexKey)
  end
end
return 0
