-- Read one lock by its lock id, and the server time, in one step. Only reads.
--
-- KEYS[1] index   lock id -> storage key of the lock
-- ARGV[1] lockId
-- (also read: the lock that the index names)
--
-- returns {json, seconds, microseconds}; nil if there is no lock with this lock id; the error TRYAGAIN
--         on a cluster, if the slot is moving: the index is on this node, and the lock perhaps on
--         the other one
local lockKey = redis.call('GET', KEYS[1])
if not lockKey then
  return false
end
-- With pcall: on a node that the slot leaves, Redis refuses to read a lock that has left already.
local held = redis.pcall('GET', lockKey)
if type(held) ~= 'string' then
  if held and not string.find(held.err, 'non local key', 1, true) then
    return redis.call('GET', lockKey)  -- raises the other error
  end
  if string.sub(KEYS[1], 1, 1) == '{' and lockKey ~= KEYS[1] .. ':undone' then
    return redis.error_reply('TRYAGAIN the lock may be on another node')
  end
  return false
end
if cjson.decode(held).lockId ~= ARGV[1] then
  return false
end
local time = redis.call('TIME')
return {held, time[1], time[2]}
