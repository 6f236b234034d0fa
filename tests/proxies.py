"""Proxies as networks have them between people and a site."""

import re
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

UPGRADE = re.compile(rb"\r\n(?:upgrade|sec-websocket-[a-z]+): [^\r\n]*", re.IGNORECASE)
REQUEST = re.compile(rb"[A-Z]+ /")
HEADERS_END = b"\r\n\r\n"


@contextmanager
def without_upgrades(port: int) -> Iterator[int]:
    """Its port: what it takes there goes on to `port`, but no websocket gets through."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=pump, args=(server, self.request), daemon=True)
                back.start()
                _pump_stripped(self.request, server)
                back.join()

    with listening(Relay) as taken:
        yield taken


@contextmanager
def impatient(port: int, seconds: float, cut: list[bytes]) -> Iterator[int]:
    """Its port: what it takes there goes on to `port`, until nothing has passed either way for so long.

    What was first asked on a connection that ended so is noted in `cut`.
    """

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked = b""
            with socket.create_connection(("127.0.0.1", port)) as server:
                while ready := select.select([self.request, server], [], [], seconds)[0]:
                    for source in ready:
                        data = source.recv(65536)
                        asked = asked or data
                        if not data:
                            return
                        (server if source is self.request else self.request).sendall(data)
                cut.append(asked)

    with listening(Relay) as taken:
        yield taken


@contextmanager
def listening(relay: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """Its port: each connection there is a `relay`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), relay) as listener:
        listener.daemon_threads = True
        listener.block_on_close = False
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Until either side ends it."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _pump_stripped(source: socket.socket, target: socket.socket) -> None:
    """As a proxy of HTTP/1.0: hop-by-hop headers stay here."""
    pending = b""
    try:
        while data := source.recv(65536):
            pending += data
            while HEADERS_END in pending:
                head, _, pending = pending.partition(HEADERS_END)
                target.sendall(UPGRADE.sub(b"", head) + HEADERS_END)
            if not REQUEST.match(pending):
                target.sendall(pending)
                pending = b""
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
