"""daphne's two protocols with limits, and with errors in the shape of the API."""

import json
import logging
import time
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet import reactor as _reactor

logger = logging.getLogger("chatbackend.web")
reactor: Any = _reactor  # its type is found out when daphne installs it

LONGEST_BODY = 1024 * 1024  # bytes
LONGER = {b"/api/v1/import/": 32 * LONGEST_BODY}  # files of conversations: on disk until they are complete
MOST_LONGER = 2  # such bodies that come in at once: each is held in memory once, on its way to the application
SWALLOWED = 16 * LONGEST_BODY  # beyond that is read and thrown away, so that the client reads why; then it is cut
LONGEST_MESSAGE = 4 * 1024 * 1024  # the application refuses above 1 MiB in a sentence; beyond this the socket closes
UNREAD, READ_AGAIN = 32, 8  # messages of one socket the application has not got to: stop reading, go on
LOOK_AGAIN = 0.05  # seconds


class Request(WebRequest):  # type: ignore[misc]
    """A request whose body is bounded."""

    received = 0
    longest = LONGEST_BODY
    refusal: tuple[int, str, str] | None = None  # status, code and sentence

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
        if self.refusal:
            self.request_start = time.time()
            self.respond(*self.refusal)
            return None
        return super().process()

    def _admit(self, length: int) -> None:
        """See whether so long a body is let in; what is longer than usual takes one of a few places."""
        if self.refusal is None and length > self.longest:
            self.refusal = 413, "too_large", f"A body may have {self.longest:,} bytes; this one has more."
        elif self.refusal is None and length > LONGEST_BODY and self not in _longer:
            if len(_longer) >= MOST_LONGER:
                self.refusal = 503, "busy", "Other files are coming in at the moment: try again when they have."
                return
            _longer.add(self)
            self.notifyFinish().addBoth(lambda _: _longer.discard(self))

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """What daphne says by itself."""
        self.respond(status, status_text.decode("ascii").lower().replace(" ", "_"), body)

    def respond(self, status: int, code: str, detail: str) -> None:
        body = _problem(code, detail)
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
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
    return json.dumps({"code": code, "detail": detail, "retryable": code == "busy"}).encode()
