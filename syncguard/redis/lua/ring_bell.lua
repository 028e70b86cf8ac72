-- Interrupt the listener of a process: its BLPOP does not include the list of a new waiter.
--
-- KEYS[1] bell       list: at most one element; every BLPOP of the listener includes it
-- ARGV[1] bellTtlMs  the TTL of a ring that no listener consumes
--
-- returns 1 rung; 0 it was rung already
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
