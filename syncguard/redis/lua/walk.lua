-- One step of a walk through all live locks, in no order. However the set changes meanwhile, a lock
-- that is held from the first step to the last is met. Reads only.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] cursor   '0' for the first step, then what the last step returned
-- ARGV[2] count    how many locks to look at, about
-- ARGV[3] text     only locks whose record contains this text; and so on: any number of texts
-- (also read: the locks that the set names)
--
-- returns {cursor, seconds, microseconds, {json, ...}}; the cursor '0' ends the walk
local function matches(lock)
  for i = 3, #ARGV do
    if not string.find(lock, ARGV[i], 1, true) then
      return false
    end
  end
  return true
end
local step = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local time = redis.call('TIME')
local members = step[2]
local found = {}
local names = {}
for i = 1, #members, 2 do
  names[#names + 1] = members[i]
  -- Lua cannot unpack many more; and a small set comes whole, whatever the count.
  if #names == 512 or i + 1 == #members then
    for _, lock in ipairs(redis.call('MGET', unpack(names))) do
      if lock and matches(lock) then
        found[#found + 1] = lock
      end
    end
    names = {}
  end
end
return {step[1], time[1], time[2], found}
