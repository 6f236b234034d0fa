"""HTTP/1.1 on a socket, as little as the routes need, with the sort of control over it that faults need."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

HIGH_WATER = 64 * 1024


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    content: bytes

    def json(self) -> Any:
        """The body. Raises ValueError when it is not JSON."""
        return json.loads(self.content)


class Gone(Exception):
    """The client has closed its connection."""


@dataclass(eq=False)
class Connection:
    """One client's connection: answers go out here, and `gone` says when nobody is there any more."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    on_gone: Callable[[], None] = lambda: None
    keep: bool = True  # whether another request may follow on it
    _ahead: bytes = b""  # read while watching for the end

    async def request(self) -> Request | None:
        """The next request, or None when the client is done."""
        try:
            head = await self._head()
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            content = await self.reader.readexactly(int(headers.get("content-length", 0)))
        except (OSError, asyncio.IncompleteReadError, ValueError):
            return None
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        return Request(method, url.path, query, headers, content)

    async def _head(self) -> bytes:
        ahead, self._ahead = self._ahead, b""
        return ahead + await self.reader.readuntil(b"\r\n\r\n")

    async def watch(self) -> None:
        """Runs beside a handler: notices the client's going. A client that sends more meanwhile is not one of ours."""
        try:
            self._ahead = await self.reader.read(1)
        except OSError:
            self._ahead = b""
        if not self._ahead:
            self.gone.set()
            self.on_gone()

    def send(self, status: int, content: bytes, kind: str, **headers: str) -> None:
        """A whole answer. As in llama-server an error ends the connection."""
        self.keep = self.keep and status < HTTPStatus.BAD_REQUEST
        follows = "Keep-Alive: timeout=5, max=100" if self.keep else "Connection: close"
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self._write(
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: llama.cpp\r\n{more}"
            f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n{follows}\r\n\r\n".encode()
            + content
        )

    def json(self, value: object, status: int = 200) -> None:
        self.send(status, dump(value), "application/json; charset=utf-8")

    def error(self, status: int, message: str, kind: str) -> None:
        self.json({"error": {"code": status, "message": message, "type": kind}}, status)

    def start_stream(self, kind: str = "text/event-stream") -> None:
        self._write(
            "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nX-Accel-Buffering: no\r\n"
            f"Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        """One chunk; waits while the client does not read. Raises Gone."""
        self._write(b"%x\r\n%s\r\n" % (len(data), data))
        if self.writer.transport.get_write_buffer_size() > HIGH_WATER:
            await self._drain()
        if self.gone.is_set():
            raise Gone

    async def _drain(self) -> None:
        waits = [asyncio.ensure_future(self.writer.drain()), asyncio.ensure_future(self.gone.wait())]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    def reset(self) -> None:
        """Drop it as a broken network would: no end of stream, unsent bytes lost."""
        self.keep = False
        self.writer.transport.abort()


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


Handler = Callable[[Request, Connection], Awaitable[None]]


async def serve(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection's requests, one after another."""
    connection = Connection(reader, writer)
    try:
        while connection.keep and (request := await connection.request()) is not None:
            watch = asyncio.ensure_future(connection.watch())
            try:
                await handler(request, connection)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            if connection.gone.is_set():
                return
    finally:
        writer.close()
