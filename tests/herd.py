"""Hundreds of websockets at once, as bytes on plain sockets: a thread for each would take longer than what is tried."""

import json
import secrets
import socket
from base64 import b64encode
from collections.abc import Iterable

from conversations.models import Conversation
from tests.web import Person

_SHAKE = (
    "GET /ws/ HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: {key}\r\nCookie: sessionid={token}\r\n\r\n"
)


def come(person: Person, number: int) -> list[socket.socket]:
    """So many, which have asked to be websockets; nothing is read yet."""
    host = person.web.address.removeprefix("http://")
    address, _, port = host.partition(":")
    sockets = []
    for _ in range(number):
        one = socket.create_connection((address, int(port)), 20)
        shake = _SHAKE.format(host=host, key=b64encode(secrets.token_bytes(16)).decode(), token=person.token)
        one.sendall(shake.encode())
        sockets.append(one)
    return sockets


def follow(sockets: Iterable[socket.socket], wheres: Iterable[Conversation]) -> None:
    """Each asks for one; what comes of that is not read."""
    for one, where in zip(sockets, wheres, strict=False):
        read_until(one, b"\r\n\r\n")
        one.sendall(_frame({"type": "subscribe", "conversation": str(where.pk)}))


def read_until(one: socket.socket, words: bytes) -> bytes:
    """All that came up to `words`. ConnectionError when it is closed before."""
    read = b""
    while words not in read:
        if not (more := one.recv(65536)):
            raise ConnectionError(f"closed after {read!r}")
        read += more
    return read


def go(sockets: Iterable[socket.socket]) -> None:
    """Away without a word."""
    for one in sockets:
        one.close()


def _frame(fields: dict[str, str]) -> bytes:
    """A text frame, masked as clients must, with zeros."""
    payload = json.dumps(fields).encode()
    assert len(payload) < 126, "a longer one has a longer head"
    return bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload
