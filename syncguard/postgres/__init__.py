"""The PostgreSQL backend. Only this package knows about PostgreSQL."""

from syncguard._sql.table_names import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE
from syncguard.postgres.backend_config import POSTGRES_CAPABILITIES
from syncguard.postgres.postgres_backend import PostgresBackend
from syncguard.postgres.postgres_backend_async import AsyncPostgresBackend
from syncguard.postgres.statements import drop_sql, setup_sql
from syncguard.postgres.table_names import Tables

__all__ = [
    "DEFAULT_FENCES_TABLE",
    "DEFAULT_LOCKS_TABLE",
    "POSTGRES_CAPABILITIES",
    "AsyncPostgresBackend",
    "PostgresBackend",
    "Tables",
    "drop_sql",
    "setup_sql",
]
