-- Give a lock back, if it is still the caller's, and wake one waiter.
--
-- KEYS[1] index        lock id -> storage key of the lock
-- KEYS[2] live         sorted set: storage keys by expiry
-- ARGV[1] lockId
-- ARGV[2] toleranceMs
-- ARGV[3] waitingHead  head of the waiting flag's name; the storage key follows it
-- ARGV[4] wakeHead     head of the wake-up list's name; the storage key follows it
-- ARGV[5] wakeTtlMs    how long a wake-up that nobody takes may lie
-- (also touched: the lock, its waiting flag and its wake-up list, all named by the index)
--
-- returns 1 released; 0 not the owner; -1 not found; -2 expired
local call = redis.call
local lockKey = call('GET', KEYS[1])
if not lockKey then
  return -1
end
local held = call('GET', lockKey)
if not held then
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
if call('EXISTS', ARGV[3] .. lockKey) == 1 then
  local wakeKey = ARGV[4] .. lockKey
  if call('EXISTS', wakeKey) == 0 then
    call('RPUSH', wakeKey, '1')
    call('PEXPIRE', wakeKey, ARGV[5])
  end
end
if data.expiresAtMs > nowMs - ARGV[2] then
  return 1
end
return -2
