-- Transfer a lock to a new lock id, with the same fence. The old id becomes invalid.
--
-- KEYS[1] index      old lock id -> storage key of the lock
-- KEYS[2] newIndex   new lock id -> storage key of the lock
-- KEYS[3] live       sorted set: storage keys by expiry
-- ARGV[1] lockId     the old lock id
-- ARGV[2] newLockId
-- ARGV[3] ttlMs      the new TTL from now
-- ARGV[4] holder     new label, or empty to keep the old one
-- (also read and written: the lock that the index names)
--
-- returns {1, fence, expiresAtMs, key} adopted; 0 not the owner; -1 not found; -2 expired; the error
--         TRYAGAIN on a cluster, if the slot is moving: the index is on this node already, and the
--         lock perhaps not yet
local lockKey = redis.call('GET', KEYS[1])
if not lockKey then
  -- The client may have sent this request twice, because it lost the first reply.
  lockKey = redis.call('GET', KEYS[2])
  local held = lockKey and redis.call('GET', lockKey)
  if held then
    local data = cjson.decode(held)
    if data.lockId == ARGV[2] then
      -- The same expiry again: WAIT on this connection then also waits for the first request.
      redis.call('PEXPIREAT', lockKey, string.format('%.0f', data.expiresAtMs))
      return {1, data.fence, data.expiresAtMs, data.key}
    end
  end
  return -1
end
local held = redis.call('GET', lockKey)
if not held then
  if string.sub(KEYS[1], 1, 1) == '{' and lockKey ~= KEYS[1] .. ':undone' then
    return redis.error_reply('TRYAGAIN the lock may be on another node')
  end
  return -1
end
local data = cjson.decode(held)
if data.lockId ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
if data.expiresAtMs <= nowMs then
  return -2
end
data.lockId = ARGV[2]
data.expiresAtMs = nowMs + ARGV[3]
if ARGV[4] ~= '' then
  data.holder = ARGV[4]
end
local expiry = string.format('%.0f', data.expiresAtMs)
-- Only if it is new: undo.lua has left a tombstone there if it came earlier.
if not redis.call('SET', KEYS[2], lockKey, 'NX', 'PXAT', expiry) then
  return -1
end
redis.call('SET', lockKey, cjson.encode(data), 'PXAT', expiry)
redis.call('DEL', KEYS[1])
redis.call('ZADD', KEYS[3], expiry, lockKey)
return {1, data.fence, data.expiresAtMs, data.key}
