-- Tell a caller that was refused when to try again: wait now, as the only one, or come back later.
--
-- The queue of a lock is a schedule, not a list: the moment up to which the lock is promised, and
-- how long it is usually held. Each caller gets the next free moment, and moves it on by a hold.
-- A caller that never comes back costs one hold, once; nothing has to be removed.
--
-- KEYS[1] lock        the lock's JSON
-- KEYS[2] queue       hash: promisedMs, holdMs, waiter (a ticket), waiterUntilMs
-- ARGV[1] ticket      names the caller if it is the one that waits
-- ARGV[2] placeMs     the moment it was promised before; or 0
-- ARGV[3] heldMs      how long the lock was held, of which nobody told yet; or 0
-- ARGV[4] maxWaitMs   how long it can wait now; or 0
-- ARGV[5] maxDelayMs  no delay is longer than this
-- ARGV[6] guessMs     how long a hold is taken to be while nobody knows, at least
-- ARGV[7] keepMs      how long the queue is kept after its last use
-- ARGV[8] earlyMs     callers come this much before their turn, but not more than one hold
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
local heldMs = tonumber(ARGV[3])
local meanMs = tonumber(known[2] or '0')
if heldMs > 0 then
  -- Slow to rise and quick to fall: who comes too early costs a message, who comes too late leaves
  -- the lock idle, and the first holds of a process that just started are long.
  meanMs = meanMs > 0 and meanMs or guessMs
  meanMs = math.ceil(meanMs + (heldMs - meanMs) * (heldMs < meanMs and 0.5 or 0.15))
  call('HSET', KEYS[2], 'holdMs', string.format('%.0f', meanMs))
end
-- A hold that nobody knows the length of, or that takes much longer than usual: as long again.
local isUsual = meanMs > 0 and ageMs <= 2 * meanMs
local holdMs = meanMs > 0 and meanMs or math.max(guessMs, 2 * ageMs)
local restMs = 0
if held then
  restMs = isUsual and math.max(0, meanMs - ageMs) or math.max(holdMs - ageMs, ageMs)
end

local earlyMs = math.min(holdMs, tonumber(ARGV[8]))
local promisedMs = tonumber(known[1] or '0')
local placeMs = tonumber(ARGV[2])
-- Its turn, or nobody else's: else whoever comes first would take the turn of those who left.
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
  earlyMs = 0  -- it came early, and somebody else waits: the next time it comes on time
end
call('PEXPIRE', KEYS[2], math.ceil(math.max(placeMs - nowMs, 0)) + ARGV[7])
local delayMs = math.max(placeMs - earlyMs - nowMs, guessMs / 4)
return {0, math.ceil(math.min(delayMs, tonumber(ARGV[5]))), math.ceil(placeMs)}
