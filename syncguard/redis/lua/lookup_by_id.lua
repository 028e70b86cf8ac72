-- Read one lock by its lock id, and the server time, in one step. Only reads.
--
-- KEYS[1] index   lock id -> storage key of the lock
-- ARGV[1] lockId
-- (also read: the lock that the index names)
--
-- returns {json, seconds, microseconds}; nil if there is no lock with this lock id; the error TRYAGAIN
--         on a cluster, if the slot is moving: the index is on this node already, and the lock
--         perhaps not yet
local lockKey = redis.call('GET', KEYS[1])
if not lockKey then
  return false
end
local held = redis.call('GET', lockKey)
if not held then
  if string.sub(KEYS[1], 1, 1) == '{' and lockKey ~= KEYS[1] .. ':undone' then
    return redis.error_reply('TRYAGAIN the lock may still be on another node')
  end
  return false
end
if cjson.decode(held).lockId ~= ARGV[1] then
  return false
end
local time = redis.call('TIME')
return {held, time[1], time[2]}
