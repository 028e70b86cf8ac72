-- End a wait: the waiting caller has acquired the lock or stopped waiting. Another caller may wait.
--
-- KEYS[1] queue    hash: promisedMs, holdMs, waiter (a ticket), waiterUntilMs
-- ARGV[1] ticket
--
-- returns 1 removed; 0 this caller was not the waiting one
if redis.call('HGET', KEYS[1], 'waiter') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'waiter', 'waiterUntilMs')
  return 1
end
return 0
