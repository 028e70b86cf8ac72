-- Undo an acquire or an adopt whose reply did not arrive: release its lock if it has one, and leave
-- a tombstone, so that a request which arrives after this one is refused.
--
-- KEYS[1] index        lock id -> storage key of the lock, or the tombstone: see below
-- KEYS[2] live         sorted set: storage keys by expiry
-- ARGV[1] lockId
-- ARGV[2] waitingHead  start of the waiting flag's name; the storage key follows it
-- ARGV[3] wakeHead     start of the wake-up list's name; the storage key follows it
-- ARGV[4] wakeTtlMs    the TTL of a wake-up that no waiter consumes
-- ARGV[5] tombstoneMs  the TTL of the tombstone
-- (also read and written: the lock that the index names, its waiting flag and its wake-up list)
--
-- The tombstone is the index's own name with ":undone". No lock has this name: so to every other
-- script, also in other languages, it looks like the index of a lock that is gone. It has the hash
-- tag of the index, so a script on a cluster may look for it.
--
-- returns 1 a lock had this id, and is released; 0 no lock had it; the error TRYAGAIN on a cluster, if
--         the slot is moving: the index is on this node, and the lock perhaps on the other one
local call = redis.call
local tombstone = KEYS[1] .. ':undone'
local lockKey = call('GET', KEYS[1])
local held = false
if lockKey and lockKey ~= tombstone then
  -- With pcall: on a node that the slot leaves, Redis refuses to read a lock that has left already.
  held = redis.pcall('GET', lockKey)
  if type(held) ~= 'string' then
    if held and not string.find(held.err, 'non local key', 1, true) then
      return call('GET', lockKey)  -- raises the other error
    end
    if string.sub(KEYS[1], 1, 1) == '{' then
      return redis.error_reply('TRYAGAIN the lock may be on another node')
    end
  end
end
if held and cjson.decode(held).lockId ~= ARGV[1] then
  held = false
end
if held then
  call('DEL', lockKey)
  call('ZREM', KEYS[2], lockKey)
  -- With pcall, as in release.lua: while the slot moves, Redis refuses to look for a missing name.
  if redis.pcall('EXISTS', ARGV[2] .. lockKey) == 1 then
    local wakeKey = ARGV[3] .. lockKey
    if redis.pcall('EXISTS', wakeKey) == 0 then
      call('RPUSH', wakeKey, '1')
      call('PEXPIRE', wakeKey, ARGV[4])
    end
  end
end
-- Last: it needs memory, and the release above does not.
call('SET', KEYS[1], tombstone, 'PX', ARGV[5])
return held and 1 or 0
