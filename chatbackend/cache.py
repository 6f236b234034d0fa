"""The cache that is as good as empty while Valkey is away.

Only limits live in it (allauth's on signing in and up): without it they let people through, which is said once, rather
than keeping everybody out.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class CacheOrNothing(RedisCache):
    """Django's Redis cache; while the server is away, reads find nothing and writes succeed without effect."""

    away = False

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        return self._try(lambda: super(CacheOrNothing, self).add(key, value, timeout, version), True)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._try(lambda: super(CacheOrNothing, self).get(key, default, version), default)

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        self._try(lambda: super(CacheOrNothing, self).set(key, value, timeout, version), None)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._try(lambda: super(CacheOrNothing, self).delete(key, version), False)

    def _try(self, call: Callable[[], Value], otherwise: Value) -> Value:
        try:
            value = call()
        except (RedisError, OSError) as error:
            if not CacheOrNothing.away:
                logger.warning("cache away, limits on signing in and up are not kept until it is back: %s", error)
            CacheOrNothing.away = True
            return otherwise
        if CacheOrNothing.away:
            logger.info("cache is back")
            CacheOrNothing.away = False
        return value
