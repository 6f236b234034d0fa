"""Clients of the real web process: who they are, and how they reach it. A pytest plugin."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import requests
from pytest_django import DjangoDbBlocker

from tests.eventually import eventually
from tests.stack import Process


@dataclass
class Web:
    """A web process and its address."""

    process: Process
    address: str  # http://127.0.0.1:port

    @property
    def socket_address(self) -> str:
        return self.address.replace("http", "ws") + "/ws/"


StartWeb = Callable[..., Web]


@pytest.fixture
def start_web(transactional_db: None, django_db_blocker: DjangoDbBlocker) -> Iterator[StartWeb]:
    """`start_web(SIGNUP="closed")` starts a web process on the test's database; all are ended with the test."""
    started: list[Process] = []

    def start(**environment: str) -> Web:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fd, port = listener.fileno(), listener.getsockname()[1]
            process = Process("-m", "chatbackend.web", "--fd", str(fd), pass_fds=(fd,), **environment)
        started.append(process)
        web = Web(process, f"http://127.0.0.1:{port}")
        eventually(lambda: _answers(web), 20, what="the web process to answer")
        return web

    yield start
    for process in started:
        process.end()


@pytest.fixture
def web(start_web: StartWeb) -> Web:
    return start_web()


def _answers(web: Web) -> bool:
    assert web.process.process.poll() is None, web.process.output()
    try:
        return requests.get(f"{web.address}/healthz", timeout=5).ok
    except requests.ConnectionError:
        return False
