"""daphne's two protocols with limits, and with errors in the shape of the API."""

import json
import logging
import time
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from django.conf import settings
from django.db import connection
from twisted.internet import reactor as _reactor
from twisted.internet import threads

from chatbackend.accounts import sessions

logger = logging.getLogger("chatbackend.web")
reactor: Any = _reactor  # its type is found out when daphne installs it

LONGEST_BODY = 1024 * 1024  # bytes
LONGER = {b"/api/v1/import/": 32 * LONGEST_BODY}  # files of conversations: on disk until they are complete
MOST_LONGER = 2  # such bodies that come in at once: each is held in memory once, on its way to the application
LONGER_SECONDS = 300.0  # for all of such a body: 32 MiB at 1 Mbit/s take 268
RETRY_SECONDS = 5
SWALLOWED = 16 * LONGEST_BODY  # beyond that is read and thrown away, so that the client reads why; then it is cut
LONGEST_MESSAGE = 4 * 1024 * 1024  # the application refuses above 1 MiB in a sentence; beyond this the socket closes
UNREAD, READ_AGAIN = 32, 8  # messages of one socket the application has not got to: stop reading, go on
LOOK_AGAIN = 0.05  # seconds


class Request(WebRequest):  # type: ignore[misc]
    """A request whose body is bounded."""

    received = 0
    longest = LONGEST_BODY
    refusal: tuple[int, str, str] | None = None  # status, code and sentence
    _came = False  # all of it

    def gotLength(self, length: int | None) -> None:
        # Its own path is set when the body is complete; until then the channel has it.
        self.longest = LONGER.get(self.channel._path.partition(b"?")[0], LONGEST_BODY)
        self._admit(length or 0)
        super().gotLength(0 if self.refusal else length)
        if length is not None and length > self.longest + SWALLOWED:
            self._refuse_now()

    def handleContentChunk(self, data: bytes) -> None:
        self.received += len(data)
        self._admit(self.received)
        if not self.refusal:
            super().handleContentChunk(data)
        elif self.received > self.longest + SWALLOWED:
            self._refuse_now()

    def process(self) -> Any:
        self._came = True
        if self.refusal:
            self.request_start = time.time()
            self.respond(*self.refusal)
            return None
        return super().process()

    def _admit(self, length: int) -> None:
        """See whether so long a body is let in; what is longer than usual takes one of a few places.

        So that two who send slowly cannot keep them from everybody, a place is for the signed in, and for a while.
        """
        if self.refusal is None and length > self.longest:
            self.refusal = 413, "too_large", f"A body may have {self.longest:,} bytes; this one has more."
        elif self.refusal is None and length > LONGEST_BODY and self not in _longer:
            if len(_longer) >= MOST_LONGER:
                self.refusal = 429, "busy", "Other files are coming in at the moment: try again when they have."
                return
            _longer.add(self)
            overdue = reactor.callLater(LONGER_SECONDS, self._too_slow)
            self.notifyFinish().addBoth(lambda _: self._gone(overdue))
            asked = threads.deferToThread(_signed_in, self._session_key())
            asked.addCallbacks(self._known, lambda failure: logger.warning("who sends is not known: %s", failure.value))

    def _gone(self, overdue: Any) -> None:
        _longer.discard(self)
        if overdue.active():
            overdue.cancel()

    def _session_key(self) -> str:
        named = self.getHeader("X-Session-Token") or self.received_cookies.get(settings.SESSION_COOKIE_NAME.encode())
        return (named or b"").decode("latin-1") if isinstance(named, bytes | None) else str(named)

    def _known(self, signed_in: bool) -> None:
        if not signed_in:
            self._give_up(401, "not_signed_in", "Sign in first: only then are files taken.")

    def _too_slow(self) -> None:
        self._give_up(408, "too_slow", f"The file did not come within {LONGER_SECONDS:.0f} seconds.")

    def _give_up(self, *refusal: Any) -> None:
        """Unless all of it came: then the application decides."""
        if not self._came and not self.refusal:
            self.refusal = refusal
            _longer.discard(self)
            self._refuse_now()

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """What daphne says by itself."""
        self.respond(status, status_text.decode("ascii").lower().replace(" ", "_"), body)

    def respond(self, status: int, code: str, detail: str) -> None:
        body = _problem(code, detail)
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
        if status == 429:
            headers.append((b"Retry-After", b"%d" % RETRY_SECONDS))
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": body})

    def client_transport(self) -> Any:
        channel = getattr(self, "channel", None)  # gone once the response is out
        return channel.transport if channel is not None else None

    def drop(self) -> None:
        self.channel.abortConnection()

    def _refuse_now(self) -> None:
        assert self.refusal
        status, code, detail = self.refusal
        body = _problem(code, detail)
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.channel.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.channel.loseConnection()


_longer: set[Request] = set()


class HttpFactory(HTTPFactory):  # type: ignore[misc]
    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        return protocol


class SocketProtocol(WebSocketProtocol):  # type: ignore[misc]
    """A websocket that is not read faster than it is answered, and that can be refused with a reason."""

    _refusal: tuple[int, str] | None = None

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        # What is not UTF-8 goes on as lone surrogates, which no valid text has: the application says what is wrong.
        text = {"text": payload.decode("utf-8", "surrogateescape")}
        if not self.muted:
            self.last_ping = time.time()
            self.application_queue.put_nowait(
                {"type": "websocket.receive", **({"bytes": payload} if isBinary else text)}
            )
        if self.application_queue.qsize() > UNREAD:
            self.transport.pauseProducing()
            reactor.callLater(LOOK_AGAIN, self._read_on)

    def sendMessage(self, *about: Any, **more: Any) -> None:
        # autobahn has one limit for what is read and what is sent, but an answer may be longer than any question.
        self.maxMessagePayloadSize = 0
        try:
            super().sendMessage(*about, **more)
        finally:
            self.maxMessagePayloadSize = LONGEST_MESSAGE

    def handle_reply(self, message: dict[str, Any]) -> None:
        """With the ASGI extension `websocket.http.response`: a handshake refused by status and body."""
        if message["type"] == "websocket.http.response.start":
            self._refusal = (message["status"], "")
        elif message["type"] == "websocket.http.response.body" and self._refusal:
            self._refuse(self._refusal[0], message["body"])
        else:
            super().handle_reply(message)

    def client_transport(self) -> Any:
        return self.transport

    def drop(self) -> None:
        self.dropConnection(abort=True)

    def _read_on(self) -> None:
        if self.application_queue.qsize() > READ_AGAIN:
            reactor.callLater(LOOK_AGAIN, self._read_on)
        elif self.transport is not None and self.transport.connected:
            self.transport.resumeProducing()

    def _refuse(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.sendData(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.dropConnection(abort=False)
        self.server.protocol_disconnected(self)
        self.server.log_action("websocket", "refused", {"path": self.request.path, "client": self.client_addr})


class SocketFactory(WebSocketFactory):  # type: ignore[misc]
    protocol = SocketProtocol


def _problem(code: str, detail: str) -> bytes:
    later = {"retry_after": RETRY_SECONDS} if code == "busy" else {}
    return json.dumps({"code": code, "detail": detail, "retryable": code in ("busy", "too_slow"), **later}).encode()


def _signed_in(key: str) -> bool:
    """In a thread: the event loop waits for no database."""
    try:
        return sessions.person_of(key) is not None
    finally:
        connection.close()
