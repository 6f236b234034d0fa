"""Clients of the real web process: people with a session, tabs with a websocket. A pytest plugin."""

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import requests
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from pytest_django import DjangoDbBlocker
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from conversations import events
from conversations.consumer import UNAUTHENTICATED
from conversations.models import Conversation
from tests import factories, outages
from tests.eventually import eventually
from tests.stack import Process

Frame = dict[str, Any]
LAN_NAME = "chat.test"  # the web processes answer to this name too


@dataclass
class Web:
    """A web process and its address."""

    process: Process
    address: str  # http://127.0.0.1:port
    outages: int = 0  # of Valkey, that it has recovered from

    @property
    def socket_address(self) -> str:
        return self.address.replace("http", "ws") + "/ws/"

    def person(self, name: str = "alice") -> "Person":
        """`name`, signed in."""
        return Person(self, factories.person(name).pk, session_of(name))

    def nobody(self) -> "Person":
        return Person(self, 0, "")


@dataclass
class Person:
    """Somebody with a session token, at a web process."""

    web: Web
    pk: int
    token: str

    def request(self, method: str, path: str, **more: Any) -> requests.Response:
        headers = {**({"X-Session-Token": self.token} if self.token else {}), **more.pop("headers", {})}
        return requests.request(method, f"{self.web.address}{path}", headers=headers, timeout=20, **more)

    def get(self, path: str, **more: Any) -> requests.Response:
        return self.request("GET", f"/api/v1/{path}", **more)

    def post(self, path: str, body: Any = None, **more: Any) -> requests.Response:
        return self.request("POST", f"/api/v1/{path}", json=body, **more)

    def patch(self, path: str, body: Any) -> requests.Response:
        return self.request("PATCH", f"/api/v1/{path}", json=body)

    def delete(self, path: str) -> requests.Response:
        return self.request("DELETE", f"/api/v1/{path}")

    def say(self, where: Conversation, text: str = "Hello", **more: Any) -> requests.Response:
        """Send a message over REST."""
        return self.post(f"conversations/{where.pk}/messages/", {"client_id": str(uuid.uuid4()), "text": text, **more})

    @contextmanager
    def tab(self, *subscriptions: Conversation) -> Iterator["Tab"]:
        """A websocket that is signed in and has had a snapshot of each of `subscriptions`."""
        with connect(self.web.socket_address, max_size=2**24, ping_interval=None) as connection:
            tab = Tab(connection)
            tab.send("auth", token=self.token)
            tab.expect("ready")
            for where in subscriptions:
                tab.send("subscribe", conversation=str(where.pk))
                tab.expect("snapshot")
            yield tab


class Tab:
    """The client's end of a websocket, and what it would show: it applies events as a page does."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[Frame] = []
        self.shown: dict[str, str] = {}  # text by generation
        self.seq: dict[str, int] = {}
        self.status: dict[str, str] = {}

    def send(self, type_: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": type_, **fields}))

    def say(self, where: Conversation, text: str = "Hello", **more: Any) -> None:
        self.send("send", conversation=str(where.pk), client_id=str(uuid.uuid4()), text=text, **more)

    def next(self, timeout: float = 10) -> Frame:
        frame: Frame = json.loads(self.connection.recv(timeout))
        self.frames.append(frame)
        self._apply(frame)
        return frame

    def expect(self, type_: str, timeout: float = 10) -> Frame:
        """The next frame, which must be of this type."""
        frame = self.next(timeout)
        assert frame["type"] == type_, frame
        return frame

    def until(self, type_: str, timeout: float = 10) -> Frame:
        """The next frame of this type; those before it are applied."""
        while (frame := self.next(timeout))["type"] != type_:
            pass
        return frame

    def has(self, generation: uuid.UUID, seq: int, timeout: float = 10) -> None:
        """Read until event `seq` of it is here: as itself, or in a snapshot, as a slow machine or reader gets it."""
        while self.seq[str(generation)] < seq:
            self.next(timeout)

    def error(self, timeout: float = 10) -> Frame:
        """The next frame, an error as errors must be."""
        frame = self.expect("error", timeout)
        assert frame["code"]
        assert frame["detail"].endswith(".")
        assert isinstance(frame["retryable"], bool)
        return frame

    def answers_once(self) -> bool:
        """Whether the next frame after a ping is its pong, and no error."""
        self.send("ping")
        return bool(self.next()["type"] == "pong")

    def answers(self) -> bool:
        """Whether the socket still works: a ping comes back. Takes whatever comes before it."""
        self.send("ping")
        return bool(self.until("pong"))

    def is_turned_away(self) -> bool:
        """Whether its session is ended; a reader who is late may find the socket closed and no sentence."""
        try:
            return bool(self.until("error")["code"] == "not_signed_in")
        except ConnectionClosed as closed:
            return closed.rcvd is not None and closed.rcvd.code == UNAUTHENTICATED

    def quiet(self, seconds: float = 0.4) -> bool:
        """Whether nothing comes for so long."""
        try:
            self.next(seconds)
        except TimeoutError:
            return True
        return False

    def hears(self, type_: str, seconds: float = 0.4) -> bool:
        """Whether a frame of this type comes before so long a silence; those before it are applied."""
        try:
            self.until(type_, seconds)
        except TimeoutError:
            return False
        return True

    def _apply(self, frame: Frame) -> None:
        if frame["type"] == "snapshot":
            for message in frame["messages"]:
                if state := message["generation"]:
                    self._replace(state["id"], message["text"], state)
        elif frame["type"] == "message.created":
            answer = frame["messages"][1]
            self._replace(answer["generation"]["id"], answer["text"], answer["generation"])
        elif "seq" in frame and frame["type"] != "message.html":
            key = frame["generation"]
            assert frame["seq"] == self.seq[key] + 1, f"a hole: {self.seq[key]}, then {frame}"
            self.seq[key] = frame["seq"]
            self.status[key] = frame.get("status", self.status[key])
            if frame["type"] == "generation.delta":
                assert frame["offset"] == len(self.shown[key]), frame
                self.shown[key] += frame["text"]

    def _replace(self, key: str, text: str, state: Frame) -> None:
        assert text.startswith(self.shown.get(key, "")), "text was taken back"
        assert state["seq"] >= self.seq.get(key, 0), "seq went back"
        self.shown[key], self.seq[key], self.status[key] = text, state["seq"], state["status"]


def session_of(name: str) -> str:
    """A new session of this person, as signing in makes one; its key is the token."""
    from chatbackend.accounts.sessions import SessionStore

    person = factories.person(name)
    session = SessionStore()
    session[SESSION_KEY] = str(person.pk)
    session[BACKEND_SESSION_KEY] = "allauth.account.auth_backends.AuthenticationBackend"
    session[HASH_SESSION_KEY] = person.get_session_auth_hash()
    session.create()
    assert session.session_key
    return session.session_key


def sign_out(token: str) -> None:
    """End a session behind the web process's back, as an admin or another process would."""
    Session.objects.get(pk=token).delete()


StartWeb = Callable[..., Web]


@pytest.fixture
def start_web(transactional_db: None, django_db_blocker: DjangoDbBlocker) -> Iterator[StartWeb]:
    """`start_web(SIGNUP="closed")` starts a web process on the test's database; all are ended with the test."""
    started: list[Web] = []

    def start(**environment: str) -> Web:
        started.append(_started(**environment))
        return started[-1]

    yield start
    for web in started:
        web.process.end()


@pytest.fixture(scope="session")
def _shared_web(django_db_setup: None) -> Iterator[Web]:
    web = _started()
    yield web
    web.process.end()


@pytest.fixture
def web(transactional_db: None, _shared_web: Web) -> Web:
    """A web process, the same for all tests: leave it as it was."""
    assert _shared_web.process.process.poll() is None, _shared_web.process.output()
    if _shared_web.outages != outages.valkey_outages:
        _let_it_hear_again(_shared_web)
        _shared_web.outages = outages.valkey_outages
    return _shared_web


Kill = Callable[[], None]


@contextmanager
def web_on(listener: socket.socket, **environment: str) -> Iterator[tuple[Web, Kill]]:
    """A web process on a socket that outlives it, as `up` starts it; `kill` kills it and starts the next."""
    processes: list[Process] = []
    web = Web(_serving(listener, **environment), f"http://127.0.0.1:{listener.getsockname()[1]}")
    processes.append(web.process)

    def kill() -> None:
        web.process.kill()
        web.process = _serving(listener, **environment)
        processes.append(web.process)

    try:
        yield web, kill
    finally:
        for process in processes:
            process.end()


def _let_it_hear_again(web: Web) -> None:
    with web.person().tab() as tab:

        def hears() -> bool:
            events.publish_to_person(factories.person("alice").pk, {"type": "conversation.updated"})
            return tab.hears("conversation.updated", 0.2)

        eventually(hears, 20, what="the web process to hear events again")
        _let_it_notice_what_was_lost()


def _let_it_notice_what_was_lost() -> None:
    """Whoever listens then gets a snapshot, which would surprise the next test: a pulse after it was heard again."""
    with redis.Redis.from_url(settings.REDIS_URL) as valkey, valkey.pubsub(ignore_subscribe_messages=True) as pulses:
        pulses.psubscribe("*pulse.*")
        for _ in range(2):  # the second is sent when it has looked whether the first came
            eventually(lambda: pulses.get_message(timeout=1), 20, what="a pulse")


@pytest.fixture
def alice(web: Web) -> Person:
    return web.person("alice")


@pytest.fixture
def bob(web: Web) -> Person:
    return web.person("bob")


def _started(**environment: str) -> Web:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = Web(_serving(listener, **environment), f"http://127.0.0.1:{listener.getsockname()[1]}")
    eventually(lambda: answers(web), 40, what="the web process to answer")
    return web


def _serving(listener: socket.socket, **environment: str) -> Process:
    fd = listener.fileno()
    environment = {"ALLOWED_HOSTS": LAN_NAME, **environment}
    return Process("-m", "chatbackend.web", "--fd", str(fd), pass_fds=(fd,), **environment)


def answers(web: Web) -> bool:
    """Whether it serves. RuntimeError with its output once it has ended."""
    if web.process.process.poll() is not None:
        raise RuntimeError(web.process.output())
    try:
        return requests.get(f"{web.address}/healthz", timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False
