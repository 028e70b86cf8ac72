-- Decide what a refused caller does: wait now (only one caller at a time), or retry later.
--
-- The queue of a lock is a schedule, not a list. It stores the time up to which the lock is
-- assigned to callers, and the usual hold time. Each caller gets the next unassigned time, and the
-- script moves that time by one hold. If a caller never retries, the lock is idle for at most one
-- hold; nothing has to be removed.
--
-- KEYS[1] lock        the lock's JSON
-- KEYS[2] queue       hash: promisedMs, holdMs, waiter (a ticket), waiterUntilMs
-- ARGV[1] ticket      identifies the caller if it becomes the waiting one
-- ARGV[2] placeMs     the time that an earlier call assigned to this caller; or 0
-- ARGV[3] heldMs      a hold time that was measured and not yet reported; or 0
-- ARGV[4] maxWaitMs   how long the caller can wait now; or 0
-- ARGV[5] maxDelayMs  the longest delay to return
-- ARGV[6] guessMs     the shortest estimate of a hold while no hold was measured
-- ARGV[7] keepMs      how long the queue is kept after its last use
-- ARGV[8] earlyMs     callers retry this long before their time, but at most one hold before it
--
-- returns {1, 0, 0}               wait; no other caller gets this until end_wait or maxWaitMs
--         {0, delayMs, placeMs}   retry after delayMs, and pass placeMs
local call = redis.call
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
local guessMs = tonumber(ARGV[6])
local known = call('HMGET', KEYS[2], 'promisedMs', 'holdMs', 'waiter', 'waiterUntilMs')

local held = call('GET', KEYS[1])
local ageMs = 0
if held then
  ageMs = math.max(0, nowMs - (cjson.decode(held).acquiredAtMs or nowMs))
end
local heldMs = tonumber(ARGV[3])
local meanMs = tonumber(known[2] or '0')
if heldMs > 0 then
  -- The mean rises slowly and falls quickly. A caller that retries too early costs one message; a
  -- caller that retries too late leaves the lock idle. The first holds of a new process are long.
  meanMs = meanMs > 0 and meanMs or guessMs
  meanMs = math.ceil(meanMs + (heldMs - meanMs) * (heldMs < meanMs and 0.5 or 0.15))
  call('HSET', KEYS[2], 'holdMs', string.format('%.0f', meanMs))
end
-- If no hold was measured, or this hold takes much longer than usual, expect it to last as long
-- again as it has lasted so far.
local isUsual = meanMs > 0 and ageMs <= 2 * meanMs
local holdMs = meanMs > 0 and meanMs or math.max(guessMs, 2 * ageMs)
local restMs = 0
if held then
  restMs = isUsual and math.max(0, meanMs - ageMs) or math.max(holdMs - ageMs, ageMs)
end

local earlyMs = math.min(holdMs, tonumber(ARGV[8]))
local promisedMs = tonumber(known[1] or '0')
local placeMs = tonumber(ARGV[2])
-- The caller may wait at its assigned time, or when no other caller has a time before it.
-- Otherwise a new caller would take the time of a caller that will retry later.
local isDue = placeMs > 0 and placeMs <= nowMs + earlyMs or promisedMs <= nowMs + restMs + holdMs
local isTaken = known[3] and known[3] ~= ARGV[1] and tonumber(known[4]) > nowMs
local maxWaitMs = tonumber(ARGV[4])
if isDue and not isTaken and restMs < maxWaitMs then
  local untilMs = string.format('%.0f', nowMs + maxWaitMs)
  call('HSET', KEYS[2], 'waiter', ARGV[1], 'waiterUntilMs', untilMs)
  call('PEXPIRE', KEYS[2], ARGV[7])
  return {1, 0, 0}
end

if placeMs <= nowMs then
  placeMs = math.max(promisedMs, nowMs + restMs + (isTaken and holdMs or 0))
  call('HSET', KEYS[2], 'promisedMs', string.format('%.0f', placeMs + 0.9 * holdMs))
elseif placeMs <= nowMs + earlyMs then
  earlyMs = 0  -- the caller was early and another one waits: it retries exactly at its time
end
call('PEXPIRE', KEYS[2], math.ceil(math.max(placeMs - nowMs, 0)) + ARGV[7])
local delayMs = math.max(placeMs - earlyMs - nowMs, guessMs / 4)
return {0, math.ceil(math.min(delayMs, tonumber(ARGV[5]))), math.ceil(placeMs)}
