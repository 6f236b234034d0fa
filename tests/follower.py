"""A client as a page is one: it follows an answer through drops, refusals and silences, and never goes back."""

import threading
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from conversations.sending import Turn
from tests.web import Person, Tab

LIVE = ("queued", "running")
SILENCE = 3.0  # seconds without a frame after which a client asks
PATIENCE = 60.0


class Follower(threading.Thread):
    """Follows one answer to its end from now on; `text` and `status` are what it shows."""

    def __init__(self, person: Person, turn: Turn) -> None:
        super().__init__(daemon=True)
        self._person = person
        self._conversation = str(turn.generation.conversation_id)
        self._generation = str(turn.generation.pk)
        self._shown: dict[str, Any] = {"shown": {}, "seq": {}, "status": {}}
        self._failure: BaseException | None = None
        self._pause = threading.Event()
        self.connections = 0
        self.start()

    @property
    def text(self) -> str:
        return str(self._shown["shown"].get(self._generation, ""))

    @property
    def status(self) -> str:
        return str(self._shown["status"].get(self._generation, ""))

    def finished(self, timeout: float = PATIENCE) -> str:
        """The text it shows at the end. Raises what went wrong for it."""
        self.join(timeout)
        if self._failure:
            raise self._failure
        assert not self.is_alive(), f"still waiting: {self._shown}"
        return self.text

    def run(self) -> None:
        try:
            while self.status in ("", *LIVE):
                try:
                    self._follow()
                except (ConnectionClosed, InvalidHandshake, OSError):
                    self._pause.wait(0.2)  # as a page waits before it connects again
        except BaseException as failure:  # noqa: BLE001  raised by `finished` in the test's thread
            self._failure = failure

    def _follow(self) -> None:
        with connect(self._person.web.socket_address, max_size=2**24, open_timeout=5) as connection:
            self.connections += 1
            tab = Tab(connection)
            tab.__dict__.update(self._shown)
            tab.send("auth", token=self._person.token)
            tab.send("subscribe", conversation=self._conversation)
            while self.status in ("", *LIVE):
                try:
                    tab.next(SILENCE)
                except TimeoutError:
                    tab.send("ping", known={self._generation: tab.seq.get(self._generation, 0)})
