"""What an edit costs is told beforehand, from what is stored, and is what it then costs."""

import uuid
from typing import Any

import pytest

from conversations import actions, estimate, rereading, sending
from conversations.estimate import Sample
from conversations.models import Conversation, Generation, Message
from slots import leases, residency
from slots.models import Server, Slot
from tests import factories, worker
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script
from tests.stack import StartProcess
from tests.test_api_conversations import refused
from tests.test_importing import comes, conversation, document, message
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

LONG = "words of a long message that somebody once wrote " * 30


def asked(where: Conversation, words: str) -> Message:
    """A question that a worker has answered, its slot quiet again."""
    turn = factories.sent(where, words)
    assert ended(turn).status == "done"
    eventually(lambda: Slot.objects.filter(phase="idle", holder=where.pk, kv_of=where.pk).exists())
    return turn.message


def cost(question: Message, **planned: Any) -> rereading.Cost:
    where = Conversation.objects.get(pk=question.conversation_id)
    return rereading.of_edit(where, question, **{"same": 0, "characters": None, **planned})


def edited(question: Message, words: str) -> dict[str, Any]:
    """The timings of the answer to `words`, said in place of `question`."""
    sent = actions.edit(factories.person().pk, question.pk, uuid.uuid4(), words)
    said = Message.objects.get(pk=sent.message.id), Generation.objects.get(pk=sent.generation.id)
    view = ended(sending.Turn(*said, created=True))
    eventually(lambda: Slot.objects.filter(phase="idle", holder=question.conversation_id).exists())
    assert view.timings
    return view.timings


def is_near(told: rereading.Cost, timings: dict[str, Any]) -> None:
    read = timings["prompt_n"]
    assert abs(told.tokens - read) <= max(8, 0.35 * read), (told, timings)


def test_what_is_told_is_what_is_then_read(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    fake_llama.script(Script(reasoning="a thought " * 100, text="It means this.", match="what does that mean"))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(system_prompt="Be brief, and kind to whoever asks.")
    first = asked(where, LONG)
    second = asked(where, "And what does that mean? " * 4)
    third = asked(where, "Why?")
    # All of it is in the cache: what differs is read, and what it stands in place of is not.
    for question, words in ((third, "Why not?"), (second, "And what else? " * 8), (first, LONG.replace("once", "1"))):
        told = cost(question, characters=len(words))
        is_near(told, edited(question, words))
    # Now it holds another branch, which begins otherwise.
    told = cost(third)
    assert told.tokens > 300
    is_near(told, edited(third, "Why?!"))
    # A word at the end of a long message.
    branch = asked(where, LONG)
    told = cost(branch, same=len(LONG) - 20)
    assert told.tokens < 40
    is_near(told, edited(branch, LONG[:-20] + "something else here."))


def test_what_is_told_knows_from_where_on_the_model_sees_the_conversation(start_worker: StartProcess) -> None:
    with FakeLlama(n_ctx=512) as small:
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(system_prompt="Be brief.", params={"max_tokens": 30})
        words = "What else is there to be seen from a lighthouse at night? " * 5
        questions = [asked(where, f"{number}: {words}") for number in range(6)]
        moved = [answer.window_start for answer in Message.objects.filter(role="assistant").order_by("pk")]
        assert [bool(start) for start in moved].count(True) == 1
        # In the window that is in the cache; so long that it has to be moved; and where it had not been moved yet.
        who, where_to = words.replace("What", "Who"), words.replace("What", "Where") * 4
        for question, said in ((questions[-1], who), (questions[-1], where_to), (questions[1], "Why?")):
            told = cost(question, characters=len(said))
            assert told.tokens < 482
            is_near(told, edited(question, said))
        assert Message.objects.filter(window_start__isnull=False).count() == 2


def test_without_a_cache_all_of_it_is_read_and_how_long_that_takes_is_told(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    asked(where, LONG + "[[prefill=200]]")
    last = asked(where, "Why? [[prefill=200]]")
    slot = Slot.objects.get(holder=where.pk)
    leases.revoke(slot.pk, slot.fence)
    leases.empty_server(slot.server_id, 4)
    told = cost(last)
    assert told.seconds
    timings = edited(last, "Why? [[prefill=200]] Do tell.")
    is_near(told, timings)
    reading = (timings["ttft_ms"] - timings["queue_ms"]) / 1000
    assert 1 <= told.seconds.low <= reading + 1, (told, timings)
    assert reading / 2 <= told.seconds.high <= 4, (told, timings)


def test_of_a_conversation_that_no_server_has_counted_the_bytes_are_the_measure() -> None:
    factories.server()
    where = factories.conversation(system_prompt="s" * 400)
    factories.sent(where, "q" * 4000)
    worker.finish(worker.claimed())
    question = Message.objects.get(role="user")
    assert cost(question) == rereading.Cost(1100, None)
    assert cost(question, characters=400).tokens == 200


def test_the_time_is_that_of_the_tokens_not_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [Sample("m", 10, 20, 1, 5, 0.5)] * 40
    long = [Sample("m", 10, 20, 1, 1000, 10.0)]
    monkeypatch.setattr("conversations.estimate.recent", lambda: short + long)
    assert estimate.reading("m", 1000) == (10, 11)


def test_of_two_caches_that_of_the_last_turn_counts() -> None:
    where = factories.conversation()
    for number in (1, 2):
        on = factories.server(url=f"http://{number}.test")
        leases.release(factories.leased(on, where.pk), 100, 7, {"of": number})
    assert Slot.objects.filter(kv_of=where.pk).count() == 2
    assert residency.outline(where.pk) == {"of": 2}


def test_where_no_slot_has_it_the_newest_file_counts_that_would_be_restored() -> None:
    where = factories.conversation()
    on, other = (factories.server(url=f"http://{number}.test") for number in (1, 2))
    factories.parked(on, where.pk, outline={"of": 1})
    factories.parked(other, where.pk, outline={"of": 2})
    assert residency.outline(where.pk) is None
    Server.objects.update(parking="effective")
    assert residency.outline(where.pk) == {"of": 2}
    Server.objects.filter(pk=other.pk).update(fingerprint="another")
    assert residency.outline(where.pk) == {"of": 1}
    leases.release(factories.leased(on, where.pk), 100, 7, {"of": 3})
    assert residency.outline(where.pk) == {"of": 3}


def test_it_is_asked_for_over_rest(alice: Person, bob: Person) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    factories.sent(where, "q" * 400)
    claim = worker.claimed()
    worker.finish(claim)
    question = Message.objects.get(role="user")
    path = f"messages/{question.pk}/edit/"
    assert alice.get(path).json() == {"tokens": 100, "seconds": None}
    assert alice.get(f"{path}?characters=40&same=4").json() == {"tokens": 10, "seconds": None}
    for wrong in ("characters=0", "characters=200001", f"characters=1{'0' * 400}", f"same=1{'0' * 400}"):
        refused(alice.get(f"{path}?{wrong}"), 400, "invalid")
    refused(alice.get(f"messages/{claim.message}/edit/"), 400, "not_a_question")
    refused(bob.get(path), 404, "not_found")


def test_one_that_was_imported_without_a_word_can_be_said_otherwise(alice: Person) -> None:
    comes(alice.pk, document(conversation(message("a", text=""))))
    path = f"messages/{Message.objects.get().pk}/edit/"
    assert [alice.get(f"{path}{asked}").json()["tokens"] for asked in ("", "?characters=40")] == [1, 10]
