"""daphne's server with what it lacks: an end in good order, back-pressure both ways, limits on bodies and frames.

Imported only after `daphne.server`, which decides the event loop Twisted runs on.
"""

import asyncio
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from daphne.server import Server
from django.conf import settings
from twisted.internet import defer
from twisted.internet.endpoints import AdoptedStreamServerEndpoint
from twisted.logger import STDLibLogObserver, globalLogBeginner
from twisted.python.failure import Failure

from chatbackend.web_protocols import LONGEST_MESSAGE, HttpFactory, SocketFactory, SocketProtocol, reactor
from conversations import events

logger = logging.getLogger("chatbackend.web")

CLOSE_SECONDS = 30  # for a socket's consumer after its client went; on a busy machine hundreds may go at once
DRAIN_SECONDS = 8.0  # for requests that are being answered
CANCEL_SECONDS = 2.0  # for those that did not make it
BUFFERED = 1_000_000  # bytes on their way to one client before it is waited for
STUCK_SECONDS = 30.0  # how long a client that reads nothing is waited for
RESTARTING = 1012  # close code "service restart"


class WebServer(Server):  # type: ignore[misc]
    """Serves one application on one listening socket until SIGTERM or SIGINT."""

    def __init__(self, application: Any, listener: socket.socket) -> None:
        super().__init__(
            application, endpoints=[f"fd:{listener.fileno()}"], action_logger=log_action, websocket_timeout=-1,
            server_name="", application_close_timeout=CLOSE_SECONDS,
        )  # fmt: skip
        self._listener = listener
        self._port: Any = None

    def run(self) -> None:
        """Serve; returns when everything is closed."""
        self.connections: dict[Any, dict[str, Any]] = {}
        self.http_factory = HttpFactory(self)
        self.ws_factory = SocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,  # the application decides
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=LONGEST_MESSAGE,
            maxFramePayloadSize=LONGEST_MESSAGE,
            utf8validateIncoming=False,  # the application says so and the socket stays open
            failByDrop=False,
        )
        logging.getLogger("twisted").setLevel(logging.WARNING)
        globalLogBeginner.beginLoggingTo([_to_logging], redirectStandardIO=False)
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        listener = self._listener
        adopted: Any = AdoptedStreamServerEndpoint  # has no types
        adopted(reactor, listener.fileno(), listener.family).listen(self.http_factory).addCallbacks(
            self._listening, self._not_listening
        )
        asyncio.set_event_loop(reactor._asyncioEventloop)
        reactor._asyncioEventloop.set_default_executor(ThreadPoolExecutor(settings.ASYNC_THREADS))
        reactor.addSystemEventTrigger("before", "shutdown", self.drain)
        reactor.run()

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """Pass a message of the application on; returns once the client's buffer has room again."""
        await super().handle_reply(protocol, message)
        if message["type"] in ("websocket.send", "http.response.body"):
            await self._room(protocol)

    def drain(self) -> defer.Deferred[None]:
        """Close in good order; Twisted stops when this is done."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        logger.info("closing: %d connections", len(self.connections))
        if self._port is not None:
            await defer.maybeDeferred(self._port.stopListening).asFuture(asyncio.get_running_loop())
        for protocol, state in list(self.connections.items()):
            if isinstance(protocol, SocketProtocol) and "disconnected" not in state:
                protocol.sendCloseFrame(code=RESTARTING, reasonUtf8=b"service restart", isReply=False)
        events.close_feeds()
        if late := await self._finish(DRAIN_SECONDS):
            logger.warning("closing: %d requests did not finish within %g s", len(late), DRAIN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=CANCEL_SECONDS)
        await asyncio.sleep(0.05)  # for the last bytes to leave

    async def _finish(self, seconds: float) -> "set[asyncio.Future[Any]]":
        """Wait for the requests being answered; those that still are."""
        tasks = [
            state["application_instance"] for state in self.connections.values() if "application_instance" in state
        ]
        running = {task for task in tasks if not task.done()}
        return (await asyncio.wait(running, timeout=seconds))[1] if running else set()

    async def _room(self, protocol: Any) -> None:
        since = time.monotonic()
        while self._unsent(protocol) > BUFFERED:
            if time.monotonic() - since > STUCK_SECONDS:
                logger.warning("dropped a client that has read nothing for %g s: %r", STUCK_SECONDS, protocol)
                protocol.drop()
                return
            await asyncio.sleep(0.02)

    def _unsent(self, protocol: Any) -> int:
        transport = protocol.client_transport()
        if transport is None or self.connections.get(protocol, {}).get("disconnected"):
            return 0
        return int(len(transport.dataBuffer) - transport.offset + transport._tempDataLen)

    def _listening(self, port: Any) -> None:
        self._port = port
        where = port.getHost()
        logger.info("listening on %s port %s", where.host, where.port)

    def _not_listening(self, failure: Failure) -> None:
        logger.critical("cannot listen: %s", failure.getErrorMessage())
        reactor.stop()


_to_logging: Any = STDLibLogObserver("twisted")


def log_action(protocol: str, action: str, details: dict[str, Any]) -> None:
    """One line per request and per socket that opens, closes or is refused."""
    path = details["path"].partition("?")[0]
    if protocol == "http":
        took = details["time_taken"] * 1000
        logger.info("%s %s %s %.0f ms", details["method"], path, details["status"], took)
    elif action != "connecting":
        logger.info("websocket %s %s client=%s", action, path, details["client"])
