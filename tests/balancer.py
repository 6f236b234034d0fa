"""A load balancer, as simple as they come: each connection goes to the next of some servers."""

import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.proxies import listening, pump


@contextmanager
def balanced(*ports: int) -> Iterator[str]:
    """Its address; `ports` are servers on this machine."""
    taken, lock = itertools.cycle(ports), threading.Lock()

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with lock:
                port = next(taken)
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=pump, args=(server, self.request), daemon=True)
                back.start()
                pump(self.request, server)
                back.join()

    with listening(Relay) as port:
        yield f"http://127.0.0.1:{port}"
