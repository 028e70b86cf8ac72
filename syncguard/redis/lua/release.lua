-- Release a lock, if the caller still holds it, and wake one waiter.
--
-- KEYS[1] index        lock id -> storage key of the lock
-- KEYS[2] live         sorted set: storage keys by expiry
-- ARGV[1] lockId
-- ARGV[2] toleranceMs
-- ARGV[3] waitingHead  start of the waiting flag's name; the storage key follows it
-- ARGV[4] wakeHead     start of the wake-up list's name; the storage key follows it
-- ARGV[5] wakeTtlMs    the TTL of a wake-up that no waiter consumes
-- (also read and written: the lock that the index names, its waiting flag and its wake-up list)
--
-- returns 1 released; 0 not the owner; -1 not found; -2 expired; the error TRYAGAIN on a cluster, if
--         the slot is moving: the index is on this node, and the lock perhaps on the other one
local call = redis.call
local lockKey = call('GET', KEYS[1])
if not lockKey then
  return -1
end
-- With pcall: on a node that the slot leaves, Redis refuses to read a lock that has left already.
local held = redis.pcall('GET', lockKey)
if type(held) ~= 'string' then
  if held and not string.find(held.err, 'non local key', 1, true) then
    return call('GET', lockKey)  -- raises the other error
  end
  if lockKey == KEYS[1] .. ':undone' then
    return -1  -- a tombstone of undo.lua stays
  end
  if string.sub(KEYS[1], 1, 1) == '{' then
    return redis.error_reply('TRYAGAIN the lock may be on another node')
  end
  call('DEL', KEYS[1])
  return -1
end
local data = cjson.decode(held)
if data.lockId ~= ARGV[1] then
  return 0
end
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
call('DEL', lockKey, KEYS[1])
call('ZREM', KEYS[2], lockKey)
-- With pcall: while the slot moves, Redis refuses to look for a name that is not here. The lock is
-- released already, so this must not fail: the waiter finds it free at its next attempt.
if redis.pcall('EXISTS', ARGV[3] .. lockKey) == 1 then
  local wakeKey = ARGV[4] .. lockKey
  if redis.pcall('EXISTS', wakeKey) == 0 then
    call('RPUSH', wakeKey, '1')
    call('PEXPIRE', wakeKey, ARGV[5])
  end
end
if data.expiresAtMs > nowMs - ARGV[2] then
  return 1
end
return -2
