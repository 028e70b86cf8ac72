"""The Redis backend. Only this package knows about Redis."""

from syncguard.redis.backend_config import REDIS_CAPABILITIES
from syncguard.redis.client_options import impatient_options
from syncguard.redis.health import inspect_server, server_time_ms
from syncguard.redis.redis_backend import RedisBackend
from syncguard.redis.redis_backend_async import AsyncRedisBackend
from syncguard.redis.server_report import ServerReport

__all__ = [
    "REDIS_CAPABILITIES",
    "AsyncRedisBackend",
    "RedisBackend",
    "ServerReport",
    "impatient_options",
    "inspect_server",
    "server_time_ms",
]
