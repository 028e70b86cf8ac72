"""The Redis backend. Everything that is Redis's own lives in this package."""

from syncguard.redis.async_client import AsyncRedisBackend
from syncguard.redis.client import RedisBackend
from syncguard.redis.configuration import REDIS_CAPABILITIES

__all__ = ["REDIS_CAPABILITIES", "AsyncRedisBackend", "RedisBackend"]
