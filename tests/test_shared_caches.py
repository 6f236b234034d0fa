"""Conversations beside each other keep their caches: one at a time on llama-server's defaults, else all at once."""

import pytest

from conversations.history import GenerationView
from conversations.models import Conversation
from slots.models import Server, Slot
from tests import factories
from tests.answers import ended, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.llama import real_llama_server
from tests.llama_client import Server as Plain
from tests.llama_client import assistant, user, words
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

SHARED_PROMPT = " ".join(["Answer as the keeper of a lighthouse would."] * 60)


def quiet() -> bool:
    """Every lease is between two turns: what is in its cache is known."""
    return not Slot.objects.filter(phase="busy").exists()


def answered(chat: Conversation, said: str) -> GenerationView:
    view = ended(factories.sent(chat, said), 60)
    assert view.status == "done", view.error
    eventually(quiet)
    return view


def turns_by_turns(first_words: int, later_words: int, max_tokens: int) -> list[GenerationView]:
    """Two people, four turns each, alternately; what their turns from the second on cost."""
    chats = [factories.conversation(factories.person(name), params={"max_tokens": max_tokens}) for name in ("a", "b")]
    later: list[GenerationView] = []
    for turn in range(4):
        for chat in chats:
            view = answered(chat, words(later_words if turn else first_words))
            later += [view] if turn else []
    return later


def figure(view: GenerationView, name: str) -> int:
    assert view.timings
    return int(view.timings[name])


def reused(view: GenerationView) -> float:
    """The share of its prompt that was not read again."""
    cache = figure(view, "cache_n")
    return cache / (cache + figure(view, "prompt_n"))


def test_on_default_flags_people_are_answered_one_at_a_time_and_find_their_caches_again(
    start_worker: StartProcess,
) -> None:
    with FakeLlama(cache_ram=True, kv_unified=True, similarity=0.1) as server:
        start_worker(LLAMA_SERVERS=server.url)
        later = turns_by_turns(first_words=600, later_words=10, max_tokens=20)
        assert server.most_at_once == {0: 1}
        assert {record.id_slot for record in server.requests} == {0}
        assert not any("cache_prompt" in record.body for record in server.requests)
    assert all(reused(view) >= 0.9 for view in later), [reused(view) for view in later]
    assert {(view.timings or {})["replay_cause"] for view in later} == {None}
    graded = Server.objects.get()
    assert graded.grade == "one_at_a_time"
    assert "--cache-ram 0" in graded.cure


def test_on_default_flags_two_at_once_never_overlap(start_worker: StartProcess) -> None:
    with FakeLlama(cache_ram=True, kv_unified=True, rate=100) as server:
        start_worker(LLAMA_SERVERS=server.url)
        sent = [factories.sent(factories.conversation(factories.person(name)), name) for name in ("a", "b", "c")]
        assert {ended(turn).status for turn in sent} == {"done"}
        assert (server.most_at_once, server.most_deferred) == ({0: 1}, 0)


@pytest.mark.llama
def test_on_the_real_servers_default_flags_caches_are_found_again_too(start_worker: StartProcess) -> None:
    with real_llama_server(flags=("-np", "-1", "-c", "2048", "-b", "64", "-ub", "64")) as server:
        start_worker(LLAMA_SERVERS=server.url.replace("//", f"//:{server.api_key}@"))
        later = turns_by_turns(first_words=240, later_words=3, max_tokens=4)
    assert all(reused(view) >= 0.9 for view in later), [reused(view) for view in later]
    assert {(view.timings or {})["replay_cause"] for view in later} == {None}
    graded = Server.objects.get()
    assert (graded.grade, graded.parks_in_ram) == ("one_at_a_time", True)
    assert "--cache-ram 0" in graded.cure
    assert sum(figure(view, "prompt_n") for view in later) < 300


def test_leased_slots_keep_what_requests_that_name_no_slot_take_from_each_other(start_worker: StartProcess) -> None:
    with FakeLlama(similarity=0.1, rate=2000) as server:
        start_worker(LLAMA_SERVERS=server.url)
        people = [factories.person(f"person{number}") for number in range(8)]
        chats = [factories.conversation(person, system_prompt=SHARED_PROMPT) for person in people]
        for chat in chats[:4]:
            answered(chat, words(80))
        again = [answered(chat, words(5)) for chat in chats[:4]]
        assert all(figure(view, "prompt_n") < 30 for view in again), [view.timings for view in again]
        assert {view.timings and view.timings["replay_cause"] for view in again} == {None}
        holders = set(Slot.objects.values_list("holder", flat=True))
        running = [factories.sent(chat, "[[tokens=600 rate=200]] go on") for chat in chats[:4]]
        for turn in running:
            written(turn)
        waiting = [factories.sent(chat, words(80)) for chat in chats[4:]]
        assert set(Slot.objects.values_list("holder", flat=True)) == holders
        assert {ended(turn, 60).status for turn in [*running, *waiting]} == {"done"}
        assert set(server.most_at_once.values()) == {1}


def test_requests_that_name_no_slot_do_take_them_from_each_other() -> None:
    system = {"role": "system", "content": SHARED_PROMPT}
    with FakeLlama(similarity=0.1) as server:
        plain = Plain(server.url)
        first = [[system, user(words(80))] for _ in range(4)]
        texts = [plain.chat(said).text for said in first]
        more = [[*said, assistant(text), user(words(5))] for said, text in zip(first, texts, strict=True)]
        for said in more:
            plain.chat(said)
        assert {record.slot for record in server.requests[:4]} == {server.requests[0].slot}
        assert all(record.prompt_n - record.cache_n > 80 for record in server.requests[4:7])
