"""Everything at once, as a person has it: web, workers, Postgres, Valkey and a llama-server, each killed in mid-answer.

However it goes, the client ends with exactly the stored text and a terminal state.
"""

import socket

import pytest
from django.db import connection

from conversations.models import Message
from conversations.sending import Turn
from slots.models import PastLease
from tests import factories, services
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, default_answer
from tests.follower import Follower
from tests.llama import fake_llama_process
from tests.stack import StartProcess
from tests.web import Person, Web, web_on

pytestmark = pytest.mark.django_db(transaction=True)

TOKENS = 120
STEADY = f"Tell me a long story. [[tokens={TOKENS} rate=30]]"
STORY = default_answer(STEADY, TOKENS)


def is_told(follower: Follower, turn: Turn, text: str = STORY) -> None:
    """The client shows the stored text, whole, and an end."""
    assert follower.finished() == text
    assert follower.status == "done"
    assert Message.objects.get(pk=turn.generation.message_id).text == text


def test_an_answer_is_followed_live(web: Web, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    followers = [Follower(web.person("alice"), turn) for _ in range(3)]
    eventually(lambda: all(20 < len(follower.text) < len(STORY) for follower in followers))
    for follower in followers:
        is_told(follower, turn)
        assert follower.connections == 1


def test_the_worker_killed(web: Web, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    follower = Follower(web.person("alice"), turn)
    eventually(lambda: len(follower.text) > 20)
    first.kill()
    start_worker(LLAMA_SERVERS=fake_llama.url)
    is_told(follower, turn)
    assert follower.connections == 1


def test_the_web_process_killed(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    with socket.create_server(("127.0.0.1", 0)) as listener, web_on(listener) as (web, kill):
        turn = factories.sent(words=STEADY)
        follower = Follower(web.person("alice"), turn)
        eventually(lambda: len(follower.text) > 20)
        kill()
        is_told(follower, turn)
        assert follower.connections == 2
        assert len(fake_llama.requests) == 1


@pytest.mark.parametrize("back", [True, False], ids=["and started again", "and gone for good"])
def test_valkey_killed(back: bool, web: Web, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    follower = Follower(web.person("alice"), turn)
    eventually(lambda: len(follower.text) > 20)
    services.CACHE.kill()
    try:
        if back:
            services.CACHE.start()
        is_told(follower, turn)
    finally:
        if not back:
            services.CACHE.start()


def test_postgres_restarted(web: Web, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    follower = Follower(web.person("alice"), turn)
    eventually(lambda: len(follower.text) > 20)
    connection.close()
    services.DATABASE.stop()
    services.DATABASE.start()
    is_told(follower, turn)
    assert len(fake_llama.requests) == 1


def test_a_long_outage_of_postgres_is_over_when_it_is_over(web: Web) -> None:
    """A pool that tries again ever more seldom would go on refusing for as long as the outage was."""
    alice = web.person("alice")
    connection.close()
    services.DATABASE.stop()
    try:
        assert {alice.get("conversations/").status_code for _ in range(3)} == {503}
    finally:
        services.DATABASE.start()
    eventually(lambda: alice.get("conversations/").status_code == 200, 4)


def test_the_llama_server_restarted(web: Web, start_worker: StartProcess) -> None:
    with fake_llama_process() as server:
        start_worker(LLAMA_SERVERS=server.url)
        turn = factories.sent(words=STEADY)
        follower = Follower(web.person("alice"), turn)
        eventually(lambda: len(follower.text) > 20)
        server.restart()
        is_told(follower, turn)
        assert follower.connections == 1


def test_everything_killed_one_after_the_other(start_worker: StartProcess) -> None:
    with (
        fake_llama_process() as server,
        socket.create_server(("127.0.0.1", 0)) as listener,
        web_on(listener) as (web, kill_web),
    ):
        worker = start_worker(LLAMA_SERVERS=server.url)
        words = "[[tokens=450 rate=20]]"  # longer than all of this takes on a busy machine
        turn = factories.sent(words=words)
        follower = Follower(web.person("alice"), turn)

        def further() -> None:
            so_far = len(follower.text)
            eventually(lambda: len(follower.text) > so_far + 60, 30)

        further()
        worker.kill()
        start_worker(LLAMA_SERVERS=server.url)
        further()
        kill_web()
        further()
        services.CACHE.kill()
        services.CACHE.start()
        further()
        connection.close()
        services.DATABASE.kill()
        services.DATABASE.start()
        further()
        server.restart()
        is_told(follower, turn, default_answer(words, 450))


def test_ten_people_each_see_their_own_answer_and_never_another_s(
    web: Web, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    people = [web.person(f"person{number}") for number in range(10)]
    turns = [sent_by(person, number) for number, person in enumerate(people)]
    followers = [Follower(person, turn) for person, turn in zip(people, turns, strict=True)]
    for number, (follower, turn) in enumerate(zip(followers, turns, strict=True)):
        is_told(follower, turn, default_answer(f"I am number {number}. [[tokens=40 rate=60]]", 40))
    stranger = people[0]
    for turn in turns[1:]:
        where = turn.generation.conversation_id
        assert stranger.get(f"conversations/{where}/").status_code == 404
        assert stranger.get(f"generations/{turn.generation.pk}/").status_code == 404
    assert PastLease.objects.filter(phase="busy").count() == 10
    assert fake_llama.most_deferred == 0


def sent_by(person: Person, number: int) -> Turn:
    where = factories.conversation(factories.person(f"person{number}"))
    return factories.sent(where, f"I am number {number}. [[tokens=40 rate=60]]")


def test_a_stop_is_seen_by_every_tab(web: Web, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words="[[tokens=2000 rate=30]]")
    alice = web.person("alice")
    followers = [Follower(alice, turn) for _ in range(2)]
    eventually(lambda: all(len(follower.text) > 20 for follower in followers))
    assert alice.post(f"generations/{turn.generation.pk}/cancel/").status_code == 200
    assert {follower.finished(5) for follower in followers} == {ended(turn).text}
    assert {follower.status for follower in followers} == {"cancelled"}


def test_a_lone_web_process_takes_messages_while_no_worker_lives(
    web: Web, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    alice, where = web.person("alice"), factories.conversation()
    said = alice.say(where, "hello")
    assert said.status_code == 202
    assert said.json()["generation"]["place"] == 1
    start_worker(LLAMA_SERVERS=fake_llama.url)
    answer = eventually(lambda: alice.get(f"generations/{said.json()['generation']['id']}/").json())
    eventually(
        lambda: alice.get(f"generations/{answer['id']}/").json()["text"] == default_answer("hello"), what="the answer"
    )
