"""When the writer stores what streams say: at once, or together with what comes in the same moment."""

import uuid

import pytest

from conversations.models import Chunk
from conversations.worker.writer import Writer, Writing
from slots.models import Server
from slots.renewal import Held
from tests import factories

pytestmark = pytest.mark.django_db

STREAM = uuid.uuid4()


def begun(writer: Writer, on: Server) -> Writing:
    claim = factories.running(on=on)
    return writer.begin(claim, Held(claim.grant, lambda: None), lambda: None)


def test_the_tokens_of_one_step_of_a_server_are_stored_together_and_no_first_token_waits() -> None:
    writer, server = Writer(), factories.server()
    first, second = begun(writer, server), begun(writer, server)

    def says(writing: Writing) -> None:
        writer.put(writing, Chunk.Part.TEXT, "word ", 1, STREAM, 10)

    says(first)
    assert not writer._others_follow(), "it is somebody's first"
    writer.round()
    says(first)
    assert writer._others_follow()
    says(second)
    assert not writer._others_follow(), "all have said something, and for one it is the first"
    writer.round()
    assert [writing.seq for writing in (first, second)] == [2, 1]
    assert not writer._others_follow(), "nothing is to be stored"
    writer.end(second)
    says(first)
    assert not writer._others_follow(), "it is alone"
    writer.round()
    assert Chunk.objects.count() == 4
