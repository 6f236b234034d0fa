"""One worker's way from a message to its answer, in this process and one turn at a time: to be broken at any point."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from conversations import turns
from conversations.claims import Claim
from conversations.history import GenerationView
from conversations.models import Conversation
from conversations.worker.running import Run
from conversations.worker.writer import Writer
from slots.models import Server
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answers import look
from tests.fake_llama import FakeLlama
from tests.grading import tried
from tests.llama import LlamaProcess


class _Writer(Writer):
    """One that ends, and gives its connection back."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.005):
            self.round()
        connection.close()


class Answering:
    """Answers on `server`, whose process is `llama`."""

    def __init__(self, llama: FakeLlama | LlamaProcess, server: Server, writer: Writer) -> None:
        self._llama, self.server, self._writer = llama, server, writer
        self._watch, self._renewal = Watch(), Renewal()

    @property
    def fake(self) -> FakeLlama:
        assert isinstance(self._llama, FakeLlama)
        return self._llama

    def claim(self, where: Conversation, words: str) -> Claim:
        factories.sent(where, words)
        claimed = turns.claim(factories.WORKER, [self.server.pk])
        assert claimed
        return claimed

    def run(self, claim: Claim) -> GenerationView:
        """The answer when its run has ended. Raises what ends it in the middle, as a process might end."""
        Run(claim, self._watch, self._renewal, self._writer)._run()
        return look(claim)

    def take_over(self, claim: Claim) -> GenerationView:
        """The same for the next worker, when nobody has renewed the lease of `claim` in time."""
        factories.expire(claim.grant.slot)
        (taken,) = turns.take_overs(factories.OTHER_WORKER, [self.server.pk])
        return self.run(taken)

    def ask(self, where: Conversation, words: str) -> GenerationView:
        view = self.run(self.claim(where, words))
        assert view.status == "done", view.error
        return view

    def probe(self) -> Server:
        """After another process began to answer there."""
        self.server = tried(self.fake.url)
        return self.server


@contextmanager
def answering(fake: FakeLlama | LlamaProcess) -> Iterator[Answering]:
    writer = _Writer()
    writer.start()
    try:
        key = (fake.api_key if isinstance(fake, LlamaProcess) else fake.options.api_key) or ""
        yield Answering(fake, tried(fake.url, api_key=key), writer)
    finally:
        writer.ended.set()
        writer.join(10)


def somebody(name: str = "") -> Conversation:
    return factories.conversation(factories.person(name or f"person-{uuid.uuid4().hex[:8]}"))
