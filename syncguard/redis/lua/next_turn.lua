-- Tell a caller that was refused when to try again: wait now, as the only one, or come back later.
--
-- The queue of a lock is a schedule, not a list: the moment up to which the lock is promised, and
-- how long it is usually held. Each caller gets the next free moment, and moves it on by one hold.
-- A caller that never comes back costs one hold, once; nothing has to be removed.
--
-- KEYS[1] lock        the lock's JSON
-- KEYS[2] queue       hash: promisedMs, holdMs, waiter (a ticket), waiterUntilMs
-- ARGV[1] ticket      names the caller if it is the one that waits
-- ARGV[2] placeMs     the moment it was promised before; or 0
-- ARGV[3] holdMs      how long it expects to hold the lock; or 0: as long as the others
-- ARGV[4] maxWaitMs   how long it can wait now; or 0
-- ARGV[5] maxDelayMs  no delay is longer than this
-- ARGV[6] guessMs     how long a hold is taken to be while nobody knows, at least
-- ARGV[7] keepMs      how long the queue is kept after its last use
--
-- returns {1, 0, 0}               wait: no other caller is told so until end_wait or maxWaitMs
--         {0, delayMs, placeMs}   come back after delayMs, with placeMs
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
local ownMs = tonumber(ARGV[3])
local meanMs = tonumber(known[2] or '0')
if ownMs > 0 then
  meanMs = meanMs > 0 and meanMs * 0.75 + ownMs * 0.25 or ownMs
  call('HSET', KEYS[2], 'holdMs', string.format('%.0f', math.ceil(meanMs)))
end
local holdMs = meanMs > 0 and meanMs or math.max(guessMs, ageMs)
-- A hold that takes much longer than usual: nobody knows how long. Perhaps as long again.
local restMs = ageMs > 2 * holdMs and ageMs or math.max(0, holdMs - ageMs)
if not held then
  restMs = 0
end

local maxWaitMs = tonumber(ARGV[4])
local isTaken = known[3] and known[3] ~= ARGV[1] and tonumber(known[4]) > nowMs
if not isTaken and restMs < maxWaitMs then
  call('HSET', KEYS[2], 'waiter', ARGV[1], 'waiterUntilMs', string.format('%.0f', nowMs + maxWaitMs))
  call('PEXPIRE', KEYS[2], ARGV[7])
  return {1, 0, 0}
end

local placeMs = tonumber(ARGV[2])
if placeMs <= nowMs then
  placeMs = math.max(tonumber(known[1] or '0'), nowMs + restMs + (isTaken and holdMs or 0))
  call('HSET', KEYS[2], 'promisedMs', string.format('%.0f', placeMs + holdMs))
end
call('PEXPIRE', KEYS[2], math.max(placeMs - nowMs, 0) + ARGV[7])
-- A little early: who waits a moment costs less than a lock for which nobody is there.
local delayMs = math.max(placeMs - nowMs - holdMs / 2, guessMs / 4)
return {0, math.ceil(math.min(delayMs, tonumber(ARGV[5]))), placeMs}
