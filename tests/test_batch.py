"""Prepared statements, and several of them in one round trip (`slots.statements`)."""

import pytest
from django.db import IntegrityError, OperationalError, connection
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from conversations import turns
from slots import leases, statements
from slots.models import Server
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

RENAME = "UPDATE slots_server SET model = %(model)s WHERE id = %(server)s RETURNING model"
NAMED = "SELECT model FROM slots_server WHERE id = %(server)s"
MOVE = "UPDATE slots_server SET url = %(url)s WHERE id = %(server)s RETURNING url"
COUNT = "SELECT count(*) FROM slots_server"
END = "SELECT pg_terminate_backend(pg_backend_pid())"


def test_each_gives_its_rows_and_sees_what_came_before() -> None:
    server = factories.server()
    named = {"server": server.pk, "model": "other"}
    seen = statements.batch(
        (RENAME, named), ("SELECT model FROM slots_server WHERE id = %(server)s", named), (COUNT, {})
    )
    assert seen == [[("other",)], [("other",)], [(1,)]]


def test_all_of_them_take_effect_or_none() -> None:
    first, second = factories.server(), factories.server(url="http://other.test")
    with pytest.raises(IntegrityError):
        statements.batch(
            (RENAME, {"server": first.pk, "model": "other"}),
            (MOVE, {"server": first.pk, "url": second.url}),
            (COUNT, {}),
        )
    assert Server.objects.get(pk=first.pk).model == first.model
    assert statements.batch((COUNT, {})) == [[(2,)]], "the connection is as good as before"


def test_of_a_connection_that_breaks_off_in_between_nothing_is_left() -> None:
    server = factories.server()
    with pytest.raises(OperationalError):
        statements.batch((RENAME, {"server": server.pk, "model": "other"}), (END, {}), (COUNT, {}))
    connection.close()
    assert Server.objects.get(pk=server.pk).model == server.model


def test_what_is_in_front_of_a_first_token_is_short_enough_that_psycopg_reads_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    execute = statements._Prepared.execute

    def noted(cursor: statements._Prepared, query: str, *more: object, **named: object) -> statements._Prepared:
        said.append(query)
        return execute(cursor, query, *more, **named)

    monkeypatch.setattr(statements._Prepared, "execute", noted)
    where = factories.conversation()
    factories.idle(factories.server(), where.pk)
    factories.sent(where)
    factories.sent(where=factories.conversation())
    for _ in range(2):
        claim = turns.claim(factories.WORKER, list(Server.objects.values_list("pk", flat=True)))
        assert claim
        leases.release(claim.grant, 1, 1)
    assert len(set(said)) > 5
    assert max(map(len, said)) <= MAX_CACHED_STATEMENT_LENGTH
