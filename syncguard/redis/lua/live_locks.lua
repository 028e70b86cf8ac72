-- Return a page of the live locks, soonest to expire first, and their total number. The cost
-- depends on the number of returned locks, not on the number of stored keys.
--
-- KEYS[1] live     sorted set: storage keys by expiry
-- ARGV[1] offset
-- ARGV[2] limit    at most 1000: Lua cannot unpack many more; 0: only count
-- (also read: the locks that the set names)
--
-- returns {seconds, microseconds, {json, ...}, liveLocks}; nil instead of a json for a lock that is
--         not on this node, on a cluster whose slot is moving
local call = redis.call
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
local isClustered = string.sub(KEYS[1], 1, 1) == '{'
local locks = {}

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

-- Make the entries of the set agree with the locks they name. A client in another language does not
-- know the set: when it releases a lock, the entry stays; when it extends one, the expiry is the
-- old one. (Such clients do not run on a cluster: there, a lock that is missing before its expiry may
-- be on the other node, and its entry stays.) Returns whether an entry was changed.
local function repair(names, expiries, areExpired)
  local changed = false
  local gone = {}
  locks = read(names)
  for i, name in ipairs(names) do
    local lock = locks[i]
    -- A plain find: a pattern would double the time of a page.
    local agrees = lock and string.find(lock, '"expiresAtMs":' .. expiries[i], 1, true)
    local stored = lock and not agrees and string.match(lock, '"expiresAtMs":(%d+)')
    if stored and tonumber(stored) > nowMs then
      call('ZADD', KEYS[1], stored, name)
      changed = true
    elseif areExpired or not (lock or isClustered) then
      gone[#gone + 1] = name
    end
  end
  if #gone > 0 then
    call('ZREM', KEYS[1], unpack(gone))
  end
  return changed or #gone > 0
end

local function entries(first, last)
  local found = call('ZRANGE', KEYS[1], first, last, 'WITHSCORES')
  local names, expiries = {}, {}
  for i = 1, #found / 2 do
    names[i] = found[2 * i - 1]
    expiries[i] = found[2 * i]
  end
  return names, expiries
end

-- Remove the oldest entries of expired locks, and skip the others: removing a million would block
-- the server for a quarter of a second.
local nowText = string.format('%.0f', nowMs)
local skipped = call('ZCOUNT', KEYS[1], '-inf', nowText)
if skipped > 0 then
  local names, expiries = entries(0, math.min(skipped, 512) - 1)
  repair(names, expiries, true)
  skipped = call('ZCOUNT', KEYS[1], '-inf', nowText)
end
local first = skipped + ARGV[1]
locks = {}
-- With the limit 0 the range would end at -1, which means the last entry.
while ARGV[2] ~= '0' do
  local names, expiries = entries(first, first + ARGV[2] - 1)
  if #names == 0 then
    locks = {}
    break
  end
  if not repair(names, expiries, false) then
    break
  end
end
return {time[1], time[2], locks, call('ZCARD', KEYS[1]) - skipped}
