"""All faults, in the order of the table."""

from __future__ import annotations

from typing import Final

from history import faults_of_redis, faults_of_sql
from history.fault import Fault

FAULTS: Final[tuple[type[Fault], ...]] = (
    faults_of_redis.NoFault,
    faults_of_redis.RedisStopped,
    faults_of_redis.RedisKilled,
    faults_of_redis.RedisKilledEverysec,
    faults_of_redis.RedisKilledWithoutAof,
    faults_of_redis.ClientsKilled,
    faults_of_redis.ScriptsFlushed,
    faults_of_redis.MemoryFull,
    faults_of_redis.EverythingFlushed,
    faults_of_redis.RepliesDelayed,
    faults_of_redis.RepliesLost,
    faults_of_redis.ConnectionsCut,
    faults_of_redis.RequestsSwallowed,
    faults_of_redis.WorkersStopped,
    faults_of_redis.WorkersKilled,
    faults_of_redis.WorkersForked,
    faults_of_redis.SentinelKill,
    faults_of_redis.SentinelCommand,
    faults_of_redis.SentinelKillMinReplicas,
    faults_of_redis.SentinelCommandMinReplicas,
    faults_of_redis.SentinelKillConfirmed,
    faults_of_redis.SentinelCommandConfirmed,
    faults_of_redis.ClusterCommand,
    faults_of_redis.ClusterKill,
    faults_of_redis.ClusterKillConfirmed,
    faults_of_redis.SlotsMigrated,
    faults_of_sql.Postgres,
    faults_of_sql.PostgresKilled,
    faults_of_sql.PostgresCut,
    faults_of_sql.PostgresTableLocked,
    faults_of_sql.PostgresTimeouts,
    faults_of_sql.PostgresConflicts,
    faults_of_sql.PostgresPromoted,
    faults_of_sql.PostgresPromotedAsync,
    faults_of_sql.PostgresPromotedWithFloor,
    faults_of_sql.PostgresWorkersStopped,
    faults_of_sql.SQLite,
    faults_of_sql.SQLiteFileLocked,
    faults_of_sql.SQLiteWorkersKilled,
    faults_of_sql.Memory,
)


def fault_named(name: str) -> type[Fault]:
    for fault in FAULTS:
        if name in (fault.name, fault.__name__):
            return fault
    raise SystemExit(f"no such fault; there are: {', '.join(fault.__name__ for fault in FAULTS)}")
