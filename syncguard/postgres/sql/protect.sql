-- For a transaction of the caller: a row if this lock id still holds its lock. Until the transaction
-- ends, nobody else can acquire the lock, because that would change lock_id.
--
-- %s lock_id
--
-- FOR KEY SHARE: heartbeats and the release, which change neither key nor lock_id, are not blocked.
-- A lock whose TTL has ended, but that nobody acquired since, is protected from now on.
SELECT 1 FROM {locks} WHERE lock_id = %s AND expires_at_ms > 0 FOR KEY SHARE
