-- Set the expiry of locks to one TTL from now, if the caller still holds them. Never revives an
-- expired lock. For one lock, or for the heartbeats of many: all reads come before all writes, so
-- that a record that cannot be read leaves no lock half extended.
--
-- KEYS[1]     live    sorted set: storage keys by expiry
-- KEYS[1 + i] index   of lock i: lock id -> storage key of the lock
-- ARGV[2i - 1] lockId of lock i
-- ARGV[2i]     ttlMs  the new TTL of lock i from now
-- (also read and written: the locks that the indexes name)
--
-- returns a list with one number for each lock:
--         expiresAtMs extended; 0 not the owner; -1 not found; -2 expired
-- or the error TRYAGAIN on a cluster, if the slot is moving: an index is on this node, and its lock
-- perhaps on the other one
local call = redis.call
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

-- The record with another expiry, and its expiry until now; nothing if it has another lock id.
-- Our own records contain both fields once and without spaces, so replacing the digits is enough.
-- To decode and encode the JSON would cost half as much again as all the rest. Text cannot match:
-- inside of a JSON string, a backslash comes before each quote.
local function extended(held, lockId, expiry)
  local start, digits, after = string.match(held, '[,{]"expiresAtMs":()(%d+)()[,}]')
  if start and string.find(held, '"lockId":"' .. lockId .. '"', 1, true)
    and not string.find(held, '"expiresAtMs":', after, true) then
    return string.sub(held, 1, start - 1) .. expiry .. string.sub(held, after), tonumber(digits)
  end
  local data = cjson.decode(held)
  if data.lockId == lockId then
    local expiresAtMs = data.expiresAtMs
    data.expiresAtMs = tonumber(expiry)
    return cjson.encode(data), expiresAtMs
  end
end

local count = #KEYS - 1
local lockKeys = call('MGET', unpack(KEYS, 2))
local results, records, expiries = {}, {}, {}
for i = 1, count do
  -- With pcall: on a node that the slot leaves, Redis refuses to read a lock that has left already.
  local held = lockKeys[i] and redis.pcall('GET', lockKeys[i])
  if type(held) == 'string' then
    local expiry = string.format('%.0f', nowMs + ARGV[2 * i])
    local record, expiresAtMs = extended(held, ARGV[2 * i - 1], expiry)
    if not record then
      results[i] = 0
    elseif expiresAtMs <= nowMs then
      results[i] = -2  -- without the tolerance: expired by the server's clock stays expired
    else
      results[i] = tonumber(expiry)
      records[i] = record
      expiries[i] = expiry
    end
  elseif held and not string.find(held.err, 'non local key', 1, true) then
    return call('GET', lockKeys[i])  -- raises the other error
  elseif lockKeys[i] and string.sub(KEYS[1], 1, 1) == '{'
    and lockKeys[i] ~= KEYS[i + 1] .. ':undone' then
    return redis.error_reply('TRYAGAIN the lock may be on another node')
  else
    results[i] = -1
  end
end

local live = {}
for i = 1, count do
  if records[i] then
    call('SET', lockKeys[i], records[i], 'PXAT', expiries[i])
    call('PEXPIREAT', KEYS[i + 1], expiries[i])
    live[#live + 1] = expiries[i]
    live[#live + 1] = lockKeys[i]
  end
end
if #live > 0 then
  call('ZADD', KEYS[1], unpack(live))
end
return results
