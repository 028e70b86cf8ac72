-- The caller that waited has its lock, or gave up: another one may wait.
--
-- KEYS[1] queue    hash: promisedMs, holdMs, waiter (a ticket), waiterUntilMs
-- ARGV[1] ticket
--
-- returns 1 done; 0 somebody else waits by now, or nobody
if redis.call('HGET', KEYS[1], 'waiter') == ARGV[1] then
  return redis.call('HDEL', KEYS[1], 'waiter', 'waiterUntilMs') > 0 and 1 or 0
end
return 0
