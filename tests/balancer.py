"""A load balancer, as simple as they come: each connection goes to the next of some servers."""

import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def balanced(*ports: int) -> Iterator[str]:
    """Its address; `ports` are servers on this machine."""
    taken, lock = itertools.cycle(ports), threading.Lock()

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with lock:
                port = next(taken)
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=_pump, args=(server, self.request), daemon=True)
                back.start()
                _pump(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}"
        finally:
            listener.shutdown()
            listener.block_on_close = False


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Until either side ends it."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
