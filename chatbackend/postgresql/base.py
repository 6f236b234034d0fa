"""The ENGINE of settings; Django looks for `base.DatabaseWrapper` in the package."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg_pool import PoolTimeout


class DatabaseWrapper(base.DatabaseWrapper):
    """After an outage every idle connection of the pool is dead, and it looks at four of them in three seconds only
    (psycopg_pool 3.3.3): with twelve, everybody would be refused for ten seconds more. So all are replaced at once.
    """

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        lost = self._connections_lost()
        try:
            return super().get_new_connection(conn_params)
        except PoolTimeout:
            if self.pool is None or self._connections_lost() == lost:
                raise
            self.pool.drain()
            return super().get_new_connection(conn_params)

    def _connections_lost(self) -> int:
        return int(self.pool.get_stats().get("connections_lost", 0)) if self.pool is not None else 0
