-- Set the expiry of a lock to one TTL from now, if the caller still holds it. Never revives an
-- expired lock.
--
-- KEYS[1] index   lock id -> storage key of the lock
-- KEYS[2] live    sorted set: storage keys by expiry
-- ARGV[1] lockId
-- ARGV[2] ttlMs   the new TTL from now
-- (also read and written: the lock that the index names)
--
-- returns {1, expiresAtMs} extended; 0 not the owner; -1 not found; -2 expired
local lockKey = redis.call('GET', KEYS[1])
if not lockKey then
  return -1
end
local held = redis.call('GET', lockKey)
if not held then
  return -1
end
local data = cjson.decode(held)
if data.lockId ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
-- Without the tolerance: a lock that has expired by the server's clock stays expired.
if data.expiresAtMs <= nowMs then
  return -2
end
data.expiresAtMs = nowMs + ARGV[2]
local expiry = string.format('%.0f', data.expiresAtMs)
redis.call('SET', lockKey, cjson.encode(data), 'PXAT', expiry)
redis.call('SET', KEYS[1], lockKey, 'PXAT', expiry)
redis.call('ZADD', KEYS[2], expiry, lockKey)
return {1, data.expiresAtMs}
