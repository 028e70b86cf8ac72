-- Acquire a free lock: increment its fence counter, write lock and index with the same TTL.
--
-- KEYS[1] lock      the lock's JSON
-- KEYS[2] index     lock id -> storage key of the lock
-- KEYS[3] fence     the counter; has no TTL and is never deleted
-- KEYS[4] live      sorted set: storage keys by expiry
-- KEYS[5] tally     number of fence counters ever created
-- KEYS[6] waiting   flag: a caller waits for this lock; only with ARGV[7]
-- ARGV[1] lockId
-- ARGV[2] ttlMs
-- ARGV[3] toleranceMs
-- ARGV[4] record    the lock's JSON without its closing brace: lockId, key and optional holder.
--                   The other fields contain only digits and need no encoder; cjson.encode would
--                   cost as much as two of the writes
-- ARGV[5] floor     "clock": raise the counter to at least the server time * 10; or empty
-- ARGV[6] fenceMax  the largest fence that may be returned
-- ARGV[7] waitMs    optional: the caller will wait this long if refused, so set the flag
-- ARGV[8] spentIds  optional: ",id,id,": ids of acquires of this process that got no reply. No code
--                   holds a lock with such an id: replace it
--
-- returns {1, fence, expiresAtMs}   acquired
--         0                         held by another holder; or this lock id was undone
--         {0, remainingMs}          the same, for a caller that will wait (-1: no expiry known)
--         {-1}                      the counter is at its maximum; only the counter was written
local call = redis.call
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local held = call('GET', KEYS[1])
if held then
  local data = cjson.decode(held)
  -- This lock id is already stored: the client sent the request twice, because it lost the reply.
  if data.lockId == ARGV[1] then
    -- The same expiry again: WAIT on this connection then also waits for the first request.
    call('PEXPIREAT', KEYS[1], string.format('%.0f', data.expiresAtMs))
    return {1, data.fence, data.expiresAtMs}
  end
  local isSpent = ARGV[8] and string.find(ARGV[8], ',' .. tostring(data.lockId) .. ',', 1, true)
  if not isSpent and data.expiresAtMs > nowMs - ARGV[3] then
    local waitMs = tonumber(ARGV[7])
    if not waitMs then
      return 0
    end
    -- A later waiter never shortens the flag of an earlier one.
    if call('PTTL', KEYS[6]) < waitMs then
      call('SET', KEYS[6], '1', 'PX', waitMs)
    end
    return {0, call('PTTL', KEYS[1])}
  end
end

local number = call('INCR', KEYS[3])
local isNew = number == 1
if ARGV[5] == 'clock' and number < nowMs * 10 then
  number = nowMs * 10
  call('SET', KEYS[3], string.format('%.0f', number))
end
if number > tonumber(ARGV[6]) then
  return {-1}
end
if isNew then
  call('INCR', KEYS[5])
end
-- Locks that expired without a release are still in the sorted set. About every 32nd acquire removes
-- the oldest of them: 8 times as many as acquires can add, and few enough not to block the server.
-- Chosen by the time, because counters that grow in step would all skip it together.
if nowMs % 32 == 0 then
  local names = call('ZRANGEBYSCORE', KEYS[4], '-inf', nowMs, 'LIMIT', 0, 256)
  if #names > 0 then
    local stored = call('MGET', unpack(names))
    local gone = {}
    for i, name in ipairs(names) do
      -- A client in another language has extended it, and does not know the set.
      local expiry = stored[i] and string.match(stored[i], '"expiresAtMs":(%d+)')
      if expiry and tonumber(expiry) > nowMs then
        call('ZADD', KEYS[4], expiry, name)
      else
        gone[#gone + 1] = name
      end
    end
    if #gone > 0 then
      call('ZREM', KEYS[4], unpack(gone))
    end
  end
end

local fence = string.format('%015.0f', number)
local expiresAtMs = nowMs + ARGV[2]
-- Format once: Redis would convert the number to text on each use, with 17 digits.
local expiry = string.format('%.0f', expiresAtMs)
local record = ARGV[4] .. ',"expiresAtMs":' .. expiry
  .. string.format(',"acquiredAtMs":%.0f,"fence":"%s"}', nowMs, fence)
-- PXAT, not PX: on Redis 6.2 the time can change between two commands with a relative expiry.
-- The index first, and only if it is new: undo.lua has left a tombstone there if it came earlier.
if not call('SET', KEYS[2], KEYS[1], 'NX', 'PXAT', expiry) then
  return 0
end
call('SET', KEYS[1], record, 'PXAT', expiry)
call('ZADD', KEYS[4], expiry, KEYS[1])
return {1, fence, expiresAtMs}
