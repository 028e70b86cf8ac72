-- The state of the server, for an operator. The number of counters is an estimate of the planner:
-- counting a million rows takes longer than a page may.
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'),
    current_setting('synchronous_commit'), current_setting('max_connections'), pg_backend_pid(),
    (SELECT c.reltuples::bigint FROM pg_class AS c WHERE c.oid = '{fences}'::regclass),
    extract(epoch FROM clock_timestamp()) * 1000
