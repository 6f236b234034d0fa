"""Statements in front of somebody's first token, prepared once per connection.

Postgres would parse and plan each of them anew, which takes longer than to execute them: on two busy cores acquire and
release took 13 ms, prepared 4 (measured).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from django.db import connection
from django.db.backends.utils import CursorWrapper

Rows = Sequence[tuple[Any, ...]]
Step = tuple[str, Mapping[str, Any]]  # a text with its parameters


def rows(sql: str, about: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What `sql` returns for the parameters `about`, on Django's connection and in its transaction.

    `sql` must be one of a few texts: each is kept by every connection. Raises what Django raises.
    """
    with _cursor() as cursor:
        cursor.execute(sql, about)
        found: list[tuple[Any, ...]] = cursor.cursor.found()
    return found


def batch(*steps: Step) -> list[Rows]:
    """What each of `steps` returns: sent together, and done in one transaction.

    All take effect or none; each sees what was committed when it began, as by itself. Not inside of a transaction. What
    cannot even be sent ends those before it as done: only the last one may change anything.
    """
    cursors = [_cursor() for _ in steps]
    raw: Any = connection.connection
    with connection.wrap_database_errors, raw.pipeline():
        for cursor, (sql, about) in zip(cursors, steps, strict=True):
            cursor.execute(sql, about)
    return [cursor.cursor.found() for cursor in cursors]


def row(sql: str, about: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The first of them."""
    return next(iter(rows(sql, about)), None)


def _cursor() -> CursorWrapper:
    connection.ensure_connection()
    cursor: Any = _Prepared(connection.connection)  # Django's types know its own cursor only
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    return wrap(cursor)


class _Prepared(psycopg.Cursor[tuple[Any, ...]]):
    def execute(self, query: Any, params: Any = None, **_: Any) -> "_Prepared":
        return super().execute(query, params, prepare=True)

    def found(self) -> list[tuple[Any, ...]]:
        """All rows. Whether there are any says the result: a `description` would be made of every column for it."""
        return self.fetchall() if self.pgresult and self.pgresult.nfields else []
