"""The Redis backend. Everything that is Redis's own lives in this package."""

from syncguard.redis.async_client import AsyncRedisBackend
from syncguard.redis.client import RedisBackend
from syncguard.redis.client_options import impatient_options
from syncguard.redis.configuration import REDIS_CAPABILITIES
from syncguard.redis.server import (
    ServerReport,
    inspect_server,
    server_time_ms,
)

__all__ = [
    "REDIS_CAPABILITIES",
    "AsyncRedisBackend",
    "RedisBackend",
    "ServerReport",
    "impatient_options",
    "inspect_server",
    "server_time_ms",
]
