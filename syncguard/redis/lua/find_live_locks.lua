-- One step of a scan of all live locks, in no order. A lock that is held from the first step to the
-- last is always found, even if the set changes between steps; but not a lock that is on another node
-- than the set, on a cluster whose slot is moving. Only reads.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] cursor   '0' for the first step, then the cursor that the last step returned
-- ARGV[2] count    about how many locks to read
-- ARGV[3...] text  return only locks whose record contains all of these texts; optional
-- (also read: the locks that the set names)
--
-- returns {cursor, seconds, microseconds, {json, ...}}; the cursor '0' ends the scan
local function matches(lock)
  for i = 3, #ARGV do
    if not string.find(lock, ARGV[i], 1, true) then
      return false
    end
  end
  return true
end
-- On a node that a slot leaves, Redis refuses to read a lock that has left already, and with it all
-- others of the same request: then each is read alone.
local function read(names)
  local found = redis.pcall('MGET', unpack(names))
  if not found.err then
    return found
  end
  if not string.find(found.err, 'non local key', 1, true) then
    return redis.call('MGET', unpack(names))  -- raises the other error
  end
  found = {}
  for i, name in ipairs(names) do
    local one = redis.pcall('MGET', name)
    found[i] = not one.err and one[1]
  end
  return found
end

local step = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local time = redis.call('TIME')
local members = step[2]
local found = {}
local names = {}
for i = 1, #members, 2 do
  names[#names + 1] = members[i]
  -- Lua cannot unpack many more. Redis returns a small set in one step and ignores the count.
  if #names == 512 or i + 1 == #members then
    for _, lock in ipairs(read(names)) do
      if lock and matches(lock) then
        found[#found + 1] = lock
      end
    end
    names = {}
  end
end
return {step[1], time[1], time[2], found}
