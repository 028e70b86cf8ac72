-- Take a lock that is free: count its fence up, write lock and index with one TTL.
--
-- KEYS[1] lock      the lock's JSON
-- KEYS[2] index     lock id -> storage key of the lock
-- KEYS[3] fence     the counter; never expires, is never deleted
-- KEYS[4] live      sorted set: storage keys by expiry
-- KEYS[5] tally     how many fence counters were made
-- KEYS[6] waiting   flag of a waiter; only with ARGV[7]
-- ARGV[1] lockId
-- ARGV[2] ttlMs
-- ARGV[3] toleranceMs
-- ARGV[4] record    the lock's JSON without its closing brace: lockId, key and perhaps holder.
--                   The rest is numbers and digits, which need no encoder; cjson.encode would
--                   cost as much as two of the writes
-- ARGV[5] floor     "clock": lift the counter to server time; or empty
-- ARGV[6] fenceMax  no fence above this is handed out
-- ARGV[7] waitMs    optional: the caller will wait this long if refused, so leave the flag
--
-- returns {1, fence, expiresAtMs}   acquired
--         0                         held by somebody else
--         {0, remainingMs}          the same, to a caller that will wait (-1: no expiry known)
--         {-1}                      the counter is used up; nothing was written but the counter
local call = redis.call
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local held = call('GET', KEYS[1])
if held then
  local data = cjson.decode(held)
  -- Our own id is stored already: this request was sent twice because the first reply was lost.
  if data.lockId == ARGV[1] then
    return {1, data.fence, data.expiresAtMs}
  end
  if data.expiresAtMs > nowMs - ARGV[3] then
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
-- Locks that expired without a release leave their entry behind: sweep at every 64th counter that
-- is made, and at every 64th fence of one.
if (isNew and call('INCR', KEYS[5]) or number) % 64 == 0 then
  call('ZREMRANGEBYSCORE', KEYS[4], '-inf', nowMs)
end

local fence = string.format('%015.0f', number)
local expiresAtMs = nowMs + ARGV[2]
-- As text once: Redis would turn the number into text again for each use, with 17 digits.
local expiry = string.format('%.0f', expiresAtMs)
local record = ARGV[4] .. ',"expiresAtMs":' .. expiry
  .. string.format(',"acquiredAtMs":%.0f,"fence":"%s"}', nowMs, fence)
-- PXAT, not PX: on Redis 6.2 the clock may tick between two relative expiries.
call('SET', KEYS[1], record, 'PXAT', expiry)
call('SET', KEYS[2], KEYS[1], 'PXAT', expiry)
call('ZADD', KEYS[4], expiry, KEYS[1])
return {1, fence, expiresAtMs}
