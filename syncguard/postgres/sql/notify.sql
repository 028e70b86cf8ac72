-- Wake the waiters for a lock, in a transaction of its own, after the release.
--
-- $1 channel
-- $2 payload   a hash of the table's name and the lock's key
SELECT pg_notify($1, $2)
