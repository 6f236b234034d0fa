"""Reading an answer of a llama-server while it is written.

Bytes of a stream are pumped by the socket of its POST: a first reader who is paused starves every other one, and
outlives a stop, once what nobody read fills the sockets between (2 MB on one machine; llama.cpp b11434, measured). So
that socket is read only until the second piece of the answer is there, and the rest through `GET /v1/stream`, from the
byte where that ends; servers without that route keep the first one. So the second request is not in front of anybody's
first token, nor beside its being stored.
Bytes are split on newlines before decoding: text may hold U+2028, which `str.splitlines` takes for a line end.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import urllib3

from slots.faults import ServerError, ServerFailed, StreamBroken, StreamUnknown
from slots.reading import Event, chunk, excerpt, parsed, reason, sentence

LONGEST_LINE = 8 * 1024 * 1024  # bytes; an event repeats at most the prompt


class Body(Protocol):
    """An HTTP response whose body is read as it comes, as `requests` has it."""

    raw: Any

    def close(self) -> None: ...


class Stops(Protocol):
    def stop(self, stream_id: uuid.UUID) -> bool: ...


class Stream:
    """The events of one request, from the POST or re-attached; closes its sockets at the end of the `with`.

    `reopen` gives the same stream from a byte on, on a socket of its own; None where `body` is one already.
    """

    def __init__(
        self, body: Body, offset: int, stream_id: uuid.UUID, server: Stops, reopen: Callable[[int], Body] | None = None
    ) -> None:
        self._body, self._offset, self.stream_id = body, offset, stream_id
        self._server, self._reopen = server, reopen
        self._pieces = 0  # of the answer, heard on the first socket
        self._dropped = False
        self._lock = threading.Lock()  # on which socket is read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._body.close()

    def events(self) -> Iterator[Event]:
        """Yield events up to and including the last one.

        Raises StreamBroken when it ends early or stays silent for LLAMA_SILENCE, ServerFailed on an error event.
        """
        for block, end in self._blocks():
            if data := _data_of(block):
                event = _event(data, end)
                self._pieces += bool(event.text or event.reasoning)
                yield event
                if event.done:
                    return
        raise StreamBroken("The model server ended its answer without saying that it was done.")

    def stop(self) -> None:
        """Ask the server to stop it; callable from any thread. The slot is free when `/slots` says so, not before."""
        if not self._server.stop(self.stream_id):
            self.drop()

    def drop(self) -> None:
        """Wake a reader of this stream in another thread: its next read ends. Says nothing to the server."""
        with self._lock:
            self._dropped = True
            raw = self._body.raw
        if raw.closed:
            return
        try:
            raw.shutdown()  # a plain close() waits for the reader (measured: 5 s)
        except (ValueError, RuntimeError, OSError):
            return  # the reader was faster: it is closed already

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        pending = b""
        while piece := self._read():
            *blocks, pending = (pending + piece).split(b"\n\n")
            if len(pending) > LONGEST_LINE:
                raise ServerFailed("The model server sent an endless line instead of events.")
            for block in blocks:
                self._offset += len(block) + 2
                yield block, self._offset
            if self._pieces > 1 and self._reopen and self._leave_first_socket(self._reopen):
                pending = b""

    def _leave_first_socket(self, reopen: Callable[[int], Body]) -> bool:
        """Read the rest on another one, from the last event's end; False where the server has no such route."""
        self._reopen = None
        try:
            body = reopen(self._offset)
        except StreamUnknown:
            return False
        except ServerError as error:  # whatever it is: the request was sent
            raise StreamBroken(str(error)) from error
        with self._lock:
            first, self._body = self._body, body
        first.close()
        if self._dropped:
            raise StreamBroken("The answer was let go.")
        return True

    def _read(self) -> bytes:
        try:
            return self._body.raw.read1(65536) or b""
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StreamBroken(f"The model server's answer broke off ({reason(error)}).") from error


def _data_of(block: bytes) -> bytes:
    return b"".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))


def _event(data: bytes, end: int) -> Event:
    if data == b"[DONE]":
        return Event(end, done=True)
    try:
        body = parsed(data)
        if error := body.get("error"):
            raise ServerFailed(f"The model server failed while answering: {sentence(error.get('message', error))}")
        return chunk(body, end)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise ServerFailed(f"The model server sent an event that is none: {excerpt(data)}.") from error
