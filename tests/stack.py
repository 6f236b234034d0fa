"""The product's processes, real ones, on the test's database: workers and web, to be killed and paused at will."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.killable import Killable
from tests.nursery import nursery


class Process(Killable):
    """One process of the product."""

    def __init__(self, *command: str, pass_fds: tuple[int, ...] = (), **environment: str) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        environment = database_environment() | environment
        self.process = nursery().start(command, self._log.fileno(), environment, pass_fds)

    def terminate(self, timeout: float = 20) -> int:
        """Ask it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


def database_environment() -> dict[str, str]:
    """This environment, its DATABASE_URL naming the test database."""
    url = os.environ["DATABASE_URL"].replace("/chat?", f"/{connection.settings_dict['NAME']}?")
    return {**os.environ, "DATABASE_URL": url}


StartProcess = Callable[..., Process]


@pytest.fixture
def start_worker(transactional_db: None, django_db_blocker: DjangoDbBlocker) -> Iterator[StartProcess]:
    """`start_worker(LLAMA_SERVERS=…)` starts a worker; all are ended with the test."""
    started: list[Process] = []

    def start(**environment: str) -> Process:
        started.append(Process("manage.py", "run_worker", pass_fds=(), **environment))
        return started[-1]

    yield start
    for process in started:
        process.end()
