"""What goes to a model and what comes back, so that no word of anybody's is a control token and nobody sees a trace.

Between here and the server words are broken (`slots.control_tokens`); what a model repeats of that is mended before it
is stored. While it cannot be told yet whether a break is one of ours, its piece is held back, at most for the length
of a control token, and its bytes count as not consumed: whoever takes over reads them again.
"""

from collections.abc import Sequence
from uuid import UUID

from conversations.models import Chunk
from conversations.worker.writer import Writer, Writing
from slots import control_tokens, servers
from slots.client import ServerUnreachable, StreamBroken
from slots.control_tokens import Mender
from slots.models import Server


class Passage:
    """Of one running generation on `server`: what is sent, and the pieces of its answer on their way to the writer."""

    def __init__(self, server: Server, writer: Writer, writing: Writing) -> None:
        self._writer, self._writing = writer, writing
        self._known = control_tokens.of_process(servers.client_of(server), (server.boot, server.boot_at))
        self._mender = Mender(self._known.words)
        self._came: tuple[Chunk.Part, UUID, int] | None = None

    def sent(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """`messages` as they may be sent. Raises ServerError; ServerUnreachable if the server says nothing."""
        try:
            neutral = self._known.neutral(messages)
        except StreamBroken as error:
            raise ServerUnreachable(str(error)) from error  # nothing was sent: no attempt of this turn
        self._mender = Mender(self._known.words)
        return neutral

    def take(self, part: Chunk.Part, words: str, stream: UUID, end: int) -> None:
        """A piece came that ends at byte `end` of its stream: store it, or soon."""
        if self._came and (part, stream) != self._came[:2]:
            self.finish()
        self._came = part, stream, end
        pieces = self._mender.held + 1
        if ready := self._mender.feed(words):
            self._writer.put(self._writing, part, ready, pieces, stream, end)

    def finish(self) -> None:
        """Nothing more comes: store what was held back."""
        pieces = self._mender.held
        if self._came and (ready := self._mender.flush()):
            self._writer.put(self._writing, self._came[0], ready, pieces, *self._came[1:])
        self._mender, self._came = Mender(self._known.words), None
