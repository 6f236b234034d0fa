"""Where people reach the site: the listening socket, held by `up` for as long as it runs, and its names.

A web server that dies leaves the socket open: connections wait for the next one instead of being refused.
"""

import asyncio
import errno
import socket

from chatbackend.embedded.parts import CannotStart
from chatbackend.environment import lan_address

BACKLOG = 1024
EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
REASONS = {
    errno.EACCES: "only root may use a port below 1024",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that children can inherit; port 0 takes a free one. Raises CannotStart."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise CannotStart(f"HOST={host} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"port {port} on {host} is taken: choose another, as in `PORT={port + 1} make up`"
            ) from error
        raise CannotStart(f"cannot listen on {host} port {port}: {REASONS.get(error.errno or 0, error)}") from error
    return listener


def addresses(host: str, port: int) -> list[str]:
    """The site's addresses, the one for this machine first, with the LAN's when bound to every address."""
    names = [EVERY_ADDRESS.get(host, host)]
    if host in EVERY_ADDRESS and (lan := lan_address()):
        names.append(lan)
    return [f"http://{f'[{name}]' if ':' in name else name}:{port}/" for name in names]


async def answers_http(host: str, port: int) -> bool:
    """Whether a web server answers there within five seconds, whatever it says."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(EVERY_ADDRESS.get(host, host), port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
