-- Read one lock by its storage key, and the server time. Only reads.
--
-- KEYS[1] lock   the lock's JSON
--
-- returns {json, seconds, microseconds}; nil if there is no lock
local held = redis.call('GET', KEYS[1])
if not held then
  return false
end
local time = redis.call('TIME')
return {held, time[1], time[2]}
