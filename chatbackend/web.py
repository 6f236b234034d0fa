"""The web process: `python -m chatbackend.web --fd N`, or `--host H --port P`.

daphne's server with what it lacks. Asked to end (SIGTERM), it takes no more connections, tells websockets that the
service restarts (1012: clients come back), lets requests finish for DRAIN_SECONDS and exits 0. A client that does not
read is waited for instead of filling memory; a body or a flood of frames that is too large is refused while it comes.
"""

import argparse
import os
import socket
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatbackend.settings")

# Before anything else of Twisted, which it gives asyncio's event loop.
import daphne.server  # noqa: F401, I001

from django.core.exceptions import ImproperlyConfigured


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chatbackend.web", description="Serve http and the websocket.")
    parser.add_argument("--fd", type=int, help="a listening socket that was handed over")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args(words)
    try:
        listener = _adopted(asked.fd) if asked.fd is not None else _bound(asked.host, asked.port)
    except OSError as error:
        where = f"--fd {asked.fd}" if asked.fd is not None else f"{asked.host} port {asked.port}"
        sys.stderr.write(f"error: cannot listen on {where}: {error.strerror}\n")
        return 1
    try:
        from chatbackend.asgi import application
    except ImproperlyConfigured as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    from chatbackend.latency import prefer_latency
    from chatbackend.web_server import WebServer

    prefer_latency()
    WebServer(application, listener).run()
    return 0


def _adopted(fd: int) -> socket.socket:
    listener = socket.socket(fileno=fd)
    listener.getsockname()  # raises for what is no socket
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(1024)
    return listener


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
