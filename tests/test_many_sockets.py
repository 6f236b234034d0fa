"""Many sockets at one web process, and what they leave behind: nothing."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from conversations.claims import Claim
from conversations.models import Conversation
from tests import factories, herd, worker
from tests.eventually import eventually
from tests.reducer import reducer
from tests.tabs import Page, loop
from tests.test_web_server import memory, open_files
from tests.web import StartWeb, Web, session_of

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "many sockets"  # of the web process, to Postgres
ROUNDS, SOCKETS, MOST = 5, 48, 300
ANSWERS = 50


def connections() -> int:
    """Those that the web process has to Postgres."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [NAME])
        return int(cursor.fetchone()[0])


def threads(web: Web) -> int:
    found = re.search(r"Threads:\s+(\d+)", Path(f"/proc/{web.process.pid}/status").read_text())
    assert found
    return int(found[1])


@contextmanager
def most_connections() -> Iterator[list[int]]:
    """Fills in, at the end, the most that there were at any time."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            most[0] = max(most[0], connections())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def fifty_answers() -> list[Claim]:
    on = factories.server(slots=ANSWERS)
    return [factories.running(on=on) for _ in range(ANSWERS)]


def test_hundreds_of_sockets_come_and_go_while_fifty_answers_are_written_and_leave_nothing(start_web: StartWeb) -> None:
    web = start_web(PGAPPNAME=NAME)
    claims = fifty_answers()
    wheres = [Conversation.objects.get(pk=claim.conversation) for claim in claims]
    alice = web.person()

    def round_(sockets: int) -> None:
        come = herd.come(alice, sockets)
        herd.go(come[::4])  # while they are being signed in
        herd.follow(come[1::4], wheres * sockets)
        herd.go(come[1::4])  # while their snapshots are read
        herd.follow(come[2::4], wheres * sockets)
        for claim in claims[:2]:
            worker.publish(claim, "a", "b")
        for one in come[2::4]:
            herd.read_until(one, b'"type":"snapshot"')
        herd.go(come)

    with most_connections() as most, alice.tab(wheres[0]) as reader:
        round_(MOST)
        eventually(lambda: open_files(web) < SOCKETS, 30, what="the sockets to be closed")
        before = open_files(web), memory(web), threads(web)
        for _ in range(ROUNDS - 1):
            round_(SOCKETS)
        eventually(lambda: open_files(web) <= before[0] + 5, 30, what="the sockets to be closed")
        assert memory(web) - before[1] < 15_000_000
        assert threads(web) <= before[2]
        worker.finish(claims[0])
        while reader.status[str(claims[0].generation)] != "done":
            reader.next()
        assert reader.shown[str(claims[0].generation)] == "ab" * ROUNDS
        began = time.monotonic()
        assert alice.get("conversations/").status_code == 200
        assert time.monotonic() - began < 2
    assert 0 < most[0] <= settings.DATABASE_POOL
    web.process.process.terminate()
    assert web.process.process.wait(15) == 0
    said = web.process.output()
    assert "took too long to shut down" not in said
    assert "Traceback" not in said


def test_a_socket_that_is_cut_at_any_moment_leaves_no_task_behind() -> None:
    claim = factories.running()
    factories.wrote(claim, "some ", "text")
    with loop() as its_loop, reducer() as its_reducer:
        key, where = session_of("alice"), str(claim.conversation)

        def tasks() -> int:
            return len(asyncio.all_tasks())

        first = Page(its_reducer, key, where, html=True)
        its_loop.call(first.connect)
        eventually(lambda: first.loaded)
        before = its_loop.call(tasks)
        pages = [Page(its_reducer, key, where, html=True) for _ in range(40)]
        for number, page in enumerate(pages):
            its_loop.call(page.connect)
            if number % 3 == 0:
                eventually(lambda page=page: bool(page.messages), every=0.001)  # type: ignore[misc]
            socket = its_loop.call(page.leave)
            assert socket
            its_loop.call(socket.close)
            its_loop.finish(socket.task)
        eventually(lambda: its_loop.call(tasks) <= before, what="their tasks to end")
        assert not [problem for page in pages for problem in page.problems]
