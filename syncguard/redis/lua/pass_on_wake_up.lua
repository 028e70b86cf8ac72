-- A waiter stops waiting and may have consumed a wake-up. If the lock is free, wake another waiter.
--
-- KEYS[1] lock       the lock's JSON
-- KEYS[2] waiting    flag: a caller waits for this lock
-- KEYS[3] wake       list: at most one wake-up
-- ARGV[1] wakeTtlMs  the TTL of a wake-up that no waiter consumes
--
-- returns 1 woken; 0 nothing to do
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], ARGV[1])
end
return 1
