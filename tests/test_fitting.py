"""What is too long for the model whatever was said before is refused before it is queued, on every way in (S31)."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversations import fitting
from conversations.models import Conversation, Generation, Message, Preset
from slots import client, counting, statements
from slots.models import Server
from tests import factories, worker
from tests.api import Api
from tests.fake_llama import FakeLlama
from tests.test_continue import stopped
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

LONG = "word " * 4000
SYSTEM = "Be brief."


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    with FakeLlama() as server:
        factories.server(url=server.url)
        yield server


def where(name: str = "alice", **fields: Any) -> Conversation:
    return factories.conversation(factories.person(name), **fields)


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"client_id": str(uuid.uuid4()), "text": text, **more}


def is_refused(body: dict[str, Any], tokens: int, n_ctx: int = 2048) -> None:
    assert (body["code"], body["retryable"]) == ("context_exceeded", False)
    assert (body["prompt_tokens"], body["n_ctx"]) == (tokens, n_ctx)
    assert f"{tokens:,} of {n_ctx:,} tokens" in body["detail"]
    assert not Generation.objects.filter(status__in=Generation.LIVE).exists()


def test_it_is_refused_with_both_numbers_whichever_way_it_comes(llama: FakeLlama, alice: Person) -> None:
    room = where(system_prompt=SYSTEM)
    api = Api()
    answer = api.post(f"conversations/{room.pk}/messages/", said(LONG))
    assert answer.status_code == 413
    body = answer.json()
    tokens = body["prompt_tokens"]
    assert 4000 < tokens < 4050
    is_refused(body, tokens)
    assert body["detail"].startswith("Too long for the model: with the system prompt this message takes ")
    with alice.tab(room) as tab:
        frame = said(LONG)
        tab.send("send", conversation=str(room.pk), **frame)
        error = tab.until("error")
        is_refused(error, tokens)
        assert error["client_id"] == frame["client_id"]
    assert not Message.objects.exists()
    first = factories.sent(room, "Short")
    worker.finish(worker.claimed())
    edited = api.post(f"messages/{first.message.pk}/edit/", said(LONG))
    assert edited.status_code == 413
    is_refused(edited.json(), tokens)
    assert Message.objects.count() == 2
    Message.objects.filter(pk=first.message.pk).update(text=LONG)  # as one that was imported, or sent when all fitted
    again = api.post(f"messages/{first.generation.message_id}/regenerate/", {"client_id": str(uuid.uuid4())})
    is_refused(again.json(), tokens)


def test_what_was_taken_once_is_not_refused_when_it_is_repeated(llama: FakeLlama) -> None:
    room, api, body = where(), Api(), said(LONG)
    Server.objects.update(n_ctx=8192)
    assert api.post(f"conversations/{room.pk}/messages/", body).status_code == 202
    Server.objects.update(n_ctx=2048)
    assert api.post(f"conversations/{room.pk}/messages/", body).status_code == 202
    assert Generation.objects.count() == 1


def test_nothing_is_asked_about_what_has_too_few_bytes_and_nothing_refused_where_nobody_tells(
    llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    assert api.post(f"conversations/{where().pk}/messages/", said("x" * 1600)).status_code == 202
    assert not llama.journal.calls
    # More bytes, and not too many tokens.
    assert api.post(f"conversations/{where().pk}/messages/", said("abcdefgh" * 1000)).status_code == 202
    assert llama.journal.calls
    for trouble in ({"loading": True}, {"counts": False, "tokenizer": False}):
        llama.set(**trouble)
        assert api.post(f"conversations/{where().pk}/messages/", said(LONG)).status_code == 202
        llama.set(loading=False)
    llama.set(counts=False, tokenizer=True)
    assert api.post(f"conversations/{where().pk}/messages/", said(LONG)).status_code == 413
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    llama.stop()
    assert api.post(f"conversations/{where().pk}/messages/", said(LONG)).status_code == 202
    Server.objects.update(trouble="It is away.")
    assert api.post(f"conversations/{where().pk}/messages/", said(LONG)).status_code == 202


def test_the_smallest_slot_of_the_servers_that_have_the_model_counts(llama: FakeLlama) -> None:
    with FakeLlama(n_ctx=512) as small, FakeLlama(n_ctx=256) as other:
        for server, model, n_ctx in ((small, "smollm2", 512), (other, "other", 256)):
            made = factories.server(url=server.url, model=model)
            Server.objects.filter(pk=made.pk).update(n_ctx=n_ctx)
        words = "word " * 470
        refused = Api().post(f"conversations/{where(model='smollm2').pk}/messages/", said(words)).json()
        is_refused(refused, refused["prompt_tokens"], 512)
        assert 480 < refused["prompt_tokens"] < 512  # it would fit: but for an answer
        brief = where(model="smollm2", params={"max_tokens": 4})
        assert Api().post(f"conversations/{brief.pk}/messages/", said(words)).status_code == 202
        Generation.objects.all().delete()
        is_refused(
            Api().post(f"conversations/{where().pk}/messages/", said(words)).json(), refused["prompt_tokens"], 256
        )


def test_an_answer_that_fills_the_context_with_its_question_is_not_gone_on_with(llama: FakeLlama) -> None:
    room = where()
    generation = stopped(room, "word " * 1950)
    refused = Api().post(f"generations/{generation.pk}/continue/", {"client_id": str(uuid.uuid4())})
    assert refused.status_code == 413
    is_refused(refused.json(), refused.json()["prompt_tokens"])
    assert refused.json()["detail"].startswith("There is no room to go on: this answer and its question take 1,9")
    Message.objects.filter(role="assistant").update(text="word " * 1800)
    taken = Api().post(f"generations/{generation.pk}/continue/", {"client_id": str(uuid.uuid4())})
    assert taken.status_code == 202


def test_a_system_prompt_that_leaves_too_little_beside_it_is_refused_when_it_is_saved(llama: FakeLlama) -> None:
    api = Api()
    room = where()
    for path, send in ((f"conversations/{room.pk}/", api.patch), ("conversations/", api.post)):
        refused = send(path, {"system_prompt": "word " * 1600})
        assert refused.status_code == 400
        (sentence,) = refused.json()["errors"]["system_prompt"]
        assert "takes 1,6" in sentence
        assert "of 2,048 tokens: it may take 1,536" in sentence
    assert api.post("presets/", {"name": "x", "system_prompt": "word " * 1600}).status_code == 400
    assert not Preset.objects.exists()
    assert api.patch(f"conversations/{room.pk}/", {"system_prompt": "word " * 1400}).status_code == 200
    # With it even a shorter message is too long.
    refused = api.post(f"conversations/{room.pk}/messages/", said("word " * 600))
    is_refused(refused.json(), refused.json()["prompt_tokens"])
    assert json.dumps(refused.json()).count("with the system prompt") == 1


def test_control_tokens_are_counted_as_the_words_that_are_sent(llama: FakeLlama) -> None:
    """Each is one token as such, and seven where it is broken."""
    room = where()
    refused = Api().post(f"conversations/{room.pk}/messages/", said("<|im_end|>" * 400))
    assert refused.status_code == 413
    assert refused.json()["prompt_tokens"] > 5 * 400
    fitting.check_message(room.owner_id, room.pk, uuid.uuid4(), "<|im_end|>" * 40)


@pytest.mark.django_db
@given(st.text(alphabet="ab <>[]|｜é\U0001f600\n", max_size=40))
@settings(max_examples=40, deadline=None)
def test_the_statement_measures_a_system_prompt_as_we_do(prompt: str) -> None:
    alone = counting.at_most([{"role": "system", "content": prompt}]) - counting.AROUND
    measured = counting.AT_MOST.format(text="%(prompt)s::text")
    assert statements.row(f"SELECT {measured}", {"prompt": prompt}) == (alone,)
