"""A pytest plugin: what empties the database after a test that committed.

Django truncates every table, which makes new files for each and its indexes, and then makes content types and
permissions anew: a third of a second a test, for some hundred rows. So rows are deleted, and those two stay.
"""

import functools

from django.db import connection, transaction
from django.test import TransactionTestCase

MADE_BY_MIGRATE = frozenset({"django_migrations", "django_content_type", "auth_permission"})


def pytest_configure() -> None:
    TransactionTestCase._fixture_teardown = _empty_database  # type: ignore[attr-defined]


def _empty_database(_: TransactionTestCase) -> None:
    # Foreign keys are checked at the end, so the order of the tables is of no interest.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_statements())


@functools.cache
def _statements() -> str:
    with connection.cursor() as cursor:
        tables = {table.name for table in connection.introspection.get_table_list(cursor) if table.type == "t"}
    return "; ".join(f"DELETE FROM {connection.ops.quote_name(name)}" for name in sorted(tables - MADE_BY_MIGRATE))
