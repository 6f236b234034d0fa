"""The states of a turn: every move a compare-and-set, every send exactly once."""

import threading
import uuid
from contextlib import closing

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from chatbackend.postgresql import AWAY
from conversations import errors, history, queue, sending, turns
from conversations.claims import Claim
from conversations.models import Chunk, Conversation, Generation, Message
from conversations.sending import Turn
from conversations.turns import Ending, Gone
from conversations.worker.running import ended as last_event
from slots import leases
from slots.leases import LeaseLost
from slots.models import Slot
from tests import factories
from tests.factories import OTHER_WORKER, WORKER

pytestmark = pytest.mark.django_db

DONE = Ending(Generation.Status.DONE, "stop")


def state(claim: Claim | Turn) -> Generation:
    key = claim.generation if isinstance(claim, Claim) else claim.generation.pk
    return Generation.objects.get(pk=key)


def test_a_send_stores_question_and_answer_and_queues_a_generation() -> None:
    where = factories.conversation()
    turn = factories.sent(where, "How do steam engines work?")
    where.refresh_from_db()
    question, answer = Message.objects.order_by("id")
    assert (question.role, question.text, question.parent_id) == ("user", "How do steam engines work?", None)
    assert (answer.role, answer.text, answer.parent_id) == ("assistant", "", question.pk)
    assert where.leaf_id == answer.pk
    assert state(turn).status == "queued"
    assert state(turn).waiting.place == 1


def test_the_same_client_id_is_one_turn_with_the_same_ids() -> None:
    where, client_id = factories.conversation(), uuid.uuid4()
    first = factories.sent(where, client_id=client_id)
    again = factories.sent(where, client_id=client_id)
    assert (again.message.pk, again.generation.pk) == (first.message.pk, first.generation.pk)
    assert (first.created, again.created) == (True, False)
    assert Message.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_double_click_in_the_same_moment_is_one_turn() -> None:
    where, client_id = factories.conversation(), uuid.uuid4()
    seen: list[uuid.UUID] = []
    start = threading.Barrier(8)

    def click() -> None:
        start.wait()
        seen.append(factories.sent(where, client_id=client_id).generation.pk)
        connection.close()

    clicks = [threading.Thread(target=click) for _ in range(8)]
    for one in clicks:
        one.start()
    for one in clicks:
        one.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_client_id_with_other_words_is_refused_and_stores_nothing() -> None:
    where, client_id = factories.conversation(), uuid.uuid4()
    factories.sent(where, "one", client_id)
    with pytest.raises(errors.ClientIdReused):
        factories.sent(where, "two", client_id)
    assert Message.objects.count() == 2


def test_one_person_s_client_id_does_not_block_another_person() -> None:
    client_id = uuid.uuid4()
    factories.sent(factories.conversation(factories.person("alice")), client_id=client_id)
    factories.sent(factories.conversation(factories.person("bob")), client_id=client_id)
    assert Generation.objects.count() == 2


def test_a_second_send_while_an_answer_is_written_is_refused_with_what_is_newer() -> None:
    where = factories.conversation()
    first = factories.sent(where)
    with pytest.raises(errors.TurnInProgress) as refused:
        sending.send(where.owner_id, where.pk, uuid.uuid4(), "and?", None, to_leaf=False)
    assert refused.value.more["generation"].id == first.generation.pk
    assert [message.id for message in refused.value.more["messages"]] == [first.message.pk, first.generation.message_id]


def test_postgres_refuses_a_second_live_generation_whatever_the_code_does() -> None:
    turn = factories.sent()
    twin = Generation.objects.get(pk=turn.generation.pk)
    twin.pk, twin.client_id = uuid.uuid4(), uuid.uuid4()
    with pytest.raises(IntegrityError, match="generation_one_live_per_conversation"), transaction.atomic():
        twin.save(force_insert=True)


@pytest.mark.parametrize(
    ("words", "error"), [("", "text_empty"), (" \n\x00", "text_empty"), ("x" * 200_001, "text_too_long")]
)
def test_a_message_that_cannot_be_sent_is_refused_by_name(words: str, error: str) -> None:
    with pytest.raises(errors.ChatError) as refused:
        factories.sent(words=words)
    assert refused.value.code == error
    assert not Message.objects.exists()


def test_what_postgres_cannot_store_is_cleaned_and_the_rest_kept() -> None:
    factories.sent(words="a\x00b \ud800 👍🏽 \u2028 e\u0301")
    assert Message.objects.get(role="user").text == "ab \ufffd 👍🏽 \u2028 e\u0301"


def test_a_parent_elsewhere_or_a_question_as_parent_is_refused() -> None:
    elsewhere, here = factories.sent(), factories.conversation()
    for parent in (elsewhere.generation.message_id, elsewhere.message.pk, uuid.uuid4()):
        with pytest.raises(errors.ParentUnknown):
            sending.send(here.owner_id, here.pk, uuid.uuid4(), "hello", parent, to_leaf=False)


def test_another_person_s_conversation_and_a_missing_one_are_refused_alike() -> None:
    bob = factories.person("bob")
    for where in (factories.conversation().pk, uuid.uuid4()):
        with pytest.raises(errors.NotFound):
            sending.send(bob.pk, where, uuid.uuid4(), "hello", None, to_leaf=True)
    with pytest.raises(errors.NotFound):
        turns.cancel(bob.pk, factories.sent().generation.pk)


def test_the_oldest_waits_at_the_front_and_places_are_counted_from_one() -> None:
    waiting = [factories.sent(factories.conversation()) for _ in range(3)]
    assert [state(turn).waiting.place for turn in waiting] == [1, 2, 3]
    server = factories.server(slots=1)
    claimed = turns.claim(WORKER, [server.pk])
    assert claimed is not None
    assert claimed.generation == waiting[0].generation.pk
    assert turns.claim(WORKER, [server.pk]) is None
    assert state(waiting[1]).waiting.place == 1


def test_a_head_whose_model_is_served_nowhere_holds_nobody_up() -> None:
    factories.sent(factories.conversation(model="elsewhere"))
    second = factories.sent(factories.conversation(model="smollm2"))
    claimed = turns.claim(WORKER, [factories.server().pk])
    assert claimed is not None
    assert claimed.generation == second.generation.pk


def test_stopping_in_the_queue_ends_it_at_once_and_it_is_never_claimed() -> None:
    turn = factories.sent()
    ended = turns.cancel(turn.generation.owner_id, turn.generation.pk)
    assert (ended.status, ended.seq) == ("cancelled", 1)
    server = factories.server()
    assert turns.claim(WORKER, [server.pk]) is None
    assert not Slot.objects.exclude(phase="free").exists()


def test_stopping_what_runs_is_a_wish_its_worker_must_obey() -> None:
    claim = factories.running()
    wished = turns.cancel(state(claim).owner_id, claim.generation)
    assert (wished.status, wished.stop_asked_at is not None) == ("running", True)


def test_stopping_what_has_ended_changes_nothing() -> None:
    claim = factories.running()
    turns.finish(claim, DONE)
    before = Generation.objects.values().get(pk=claim.generation)
    turns.cancel(state(claim).owner_id, claim.generation)
    assert Generation.objects.values().get(pk=claim.generation) == before


def test_an_ending_folds_the_chunks_into_the_message_and_counts_as_an_event() -> None:
    claim = factories.running()
    factories.wrote(claim, "Steam ", "pushes ", "a piston.")
    factories.wrote(claim, "Let me think.", part=1)
    assert turns.finish(claim, DONE) == 5
    message = Message.objects.get(pk=claim.message)
    assert (message.text, message.reasoning) == ("Steam pushes a piston.", "Let me think.")
    assert not Chunk.objects.exists()
    assert state(claim).status == "done"


def test_a_snapshot_reads_the_same_before_and_after_the_fold() -> None:
    claim = factories.running()
    factories.wrote(claim, "Steam ", "pushes")
    during = history.generation(state(claim))
    assert (during.text, during.seq, during.status) == ("Steam pushes", 2, "running")
    turns.finish(claim, DONE)
    after = history.generation(state(claim))
    assert (after.text, after.seq, after.status) == ("Steam pushes", 3, "done")


def test_a_worker_that_lost_its_lease_ends_nothing() -> None:
    claim = factories.running()
    leases.revoke(claim.grant.slot, claim.grant.fence)
    for move in (lambda: turns.finish(claim, DONE), lambda: turns.requeue(claim, refund=False)):
        with pytest.raises(LeaseLost):
            move()
    assert state(claim).status == "running"


def test_a_deleted_conversation_is_told_apart_from_a_lost_lease() -> None:
    claim = factories.running()
    Conversation.objects.all().delete()
    assert not Message.objects.exists()
    with pytest.raises(Gone):
        turns.finish(claim, DONE)


def test_a_generation_deleted_while_it_is_looked_at_is_not_found() -> None:
    claim = factories.running()
    found = state(claim)
    Conversation.objects.all().delete()
    with pytest.raises(errors.NotFound):
        history.generation(found)
    assert last_event(claim.generation) == []


def test_a_turn_given_back_goes_to_the_front_with_its_text() -> None:
    server = factories.server(slots=1)
    claim = factories.running(on=server)
    factories.sent(factories.conversation())
    factories.wrote(claim, "Steam ")
    turns.requeue(claim, refund=False)
    assert (state(claim).status, state(claim).waiting.place) == ("queued", 1)
    assert Slot.objects.get().condition == "stopping"
    leases.stopped(claim.grant.slot, claim.grant.stream_id)
    again = turns.claim(OTHER_WORKER, [server.pk])
    assert again is not None
    assert (again.generation, again.attempt, again.seq, again.text_length) == (claim.generation, 2, 1, 6)
    assert again.stream_bytes == 0


def test_an_attempt_of_which_nothing_was_sent_is_not_counted() -> None:
    claim = factories.running()
    turns.requeue(claim, refund=True)
    assert state(claim).attempt == 0


def test_what_was_stopped_is_not_queued_again() -> None:
    claim = factories.running()
    turns.cancel(state(claim).owner_id, claim.generation)
    turns.requeue(claim, refund=False)
    assert state(claim).status == "cancelled"


def test_a_conversation_whose_slot_is_not_quiet_yet_holds_nobody_else_up() -> None:
    server, where = factories.server(slots=2), factories.conversation()
    claim = factories.running(where, server)
    turns.finish(claim, DONE)  # its lease is busy until the server says quiet
    mine = factories.sent(where, "and then?")
    other = factories.sent(factories.conversation(factories.person("bob")))
    first = turns.claim(OTHER_WORKER, [server.pk])
    assert first is not None
    assert first.generation == other.generation.pk
    assert turns.claim(OTHER_WORKER, [server.pk]) is None
    leases.release(claim.grant, 1, 1)
    second = turns.claim(OTHER_WORKER, [server.pk])
    assert second is not None
    assert (second.generation, second.grant.slot) == (mine.generation.pk, claim.grant.slot)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_paused_while_it_claims_does_not_stop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PAUSED", "300ms")
    asleep, awake = threading.Event(), threading.Event()
    ended: list[str] = []

    def sleeper() -> None:
        try:
            with transaction.atomic():
                queue.lock()
                asleep.set()
                awake.wait()
        except AWAY as error:
            ended.append(str(error))
        finally:
            connection.close()

    sleeping = threading.Thread(target=sleeper)
    sleeping.start()
    asleep.wait()
    server = factories.server()
    factories.sent()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '10s'")
        assert turns.claim(WORKER, [server.pk])
    finally:
        awake.set()
        sleeping.join()
        connection.close()
    assert "idle-in-transaction" in ended[0]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.django_db(transaction=True)
def test_who_holds_a_person_s_row_holds_up_no_queue(monkeypatch: pytest.MonkeyPatch, *, keeps: bool) -> None:
    monkeypatch.setattr(queue, "PATIENCE", "100ms")
    server = factories.server()
    where = factories.conversation()
    if keeps:
        factories.idle(server, where.pk)
    factories.sent(where)
    with closing(connections.create_connection("default")) as other, other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT FROM conversations_person FOR UPDATE")
        with pytest.raises(OperationalError, match="lock timeout"):
            turns.claim(WORKER, [server.pk])
        assert not Slot.objects.filter(phase="busy").exists()
        cursor.execute("ROLLBACK")
    assert turns.claim(WORKER, [server.pk])
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_a_take_over_goes_on_from_the_stored_byte_of_the_same_stream() -> None:
    server = factories.server()
    claim = factories.running(on=server)
    factories.wrote(claim, "Steam ", "pushes ")
    assert turns.take_overs(OTHER_WORKER, [server.pk]) == []
    factories.expire(claim.grant.slot)
    (taken,) = turns.take_overs(OTHER_WORKER, [server.pk])
    assert taken.grant.taken_over
    assert taken.grant.stream_id == claim.grant.stream_id
    assert (taken.seq, taken.stream_bytes, taken.text_length, taken.attempt) == (2, 200, 13, 1)
    with pytest.raises(LeaseLost):
        turns.finish(claim, DONE)
    turns.finish(taken, DONE)


def test_a_worker_that_died_after_the_end_of_an_answer_costs_one_time_to_live() -> None:
    where, server = factories.conversation(), factories.server(slots=1)
    claim = factories.running(where, server)
    turns.finish(claim, DONE)
    assert turns.take_overs(OTHER_WORKER, [server.pk]) == []
    assert Slot.objects.get().phase == "busy", "its worker may still be giving it back"
    factories.expire(claim.grant.slot)
    assert turns.take_overs(OTHER_WORKER, [server.pk]) == []
    assert (Slot.objects.get().phase, Slot.objects.get().condition) == ("free", "stopping")


def test_what_runs_nowhere_is_queued_again_and_after_three_attempts_interrupted_with_its_text() -> None:
    server = factories.server(slots=1)
    claim = factories.running(on=server)
    factories.wrote(claim, "Steam ")
    for attempt in (1, 2, 3):
        assert state(claim).attempt == attempt
        leases.empty_server(server.pk, 1)
        interrupted = turns.rescue()
        assert interrupted == ([(claim.conversation, claim.generation)] if attempt == 3 else [])
        turns.claim(WORKER, [server.pk])
    assert state(claim).status == "interrupted"
    assert state(claim).error["code"] == "interrupted"  # type: ignore[index]
    assert "What was written is kept. Try again" in state(claim).error["detail"]  # type: ignore[index]
    assert Message.objects.get(pk=claim.message).text == "Steam "


def test_what_runs_somewhere_is_not_rescued() -> None:
    claim = factories.running()
    factories.expire(claim.grant.slot)
    assert turns.rescue() == []
    assert state(claim).status == "running"


def test_the_model_is_sent_the_path_and_never_an_empty_answer() -> None:
    where = factories.conversation(system_prompt="Be brief.")
    server = factories.server()
    claim = factories.running(where, server)
    turns.cancel(where.owner_id, claim.generation)
    turns.finish(claim, Ending(Generation.Status.CANCELLED))
    leases.release(claim.grant, 1, 1)
    second = factories.running(where, server)
    where.refresh_from_db()
    assert history.prompt(where.pk, second.message, where.system_prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How do steam engines work?\n\nHow do steam engines work?"},
    ]
    factories.wrote(second, "Steam ")
    assert history.prompt(where.pk, second.message)[-1] == {"role": "assistant", "content": "Steam "}


@pytest.mark.parametrize(
    ("ended_by", "cause"),
    [("expired", "expired"), ("evicted", "evicted"), ("server_restarted", "server_restarted"), ("revoked", "evicted")],
)
def test_a_replay_knows_its_cause(ended_by: str, cause: str) -> None:
    where, server = factories.conversation(), factories.server(slots=1)
    claim = factories.running(where, server)
    assert claim.replay_cause is None
    turns.finish(claim, DONE)
    leases.release(claim.grant, 50, 3)
    if ended_by == "revoked":
        leases.revoke(claim.grant.slot, Slot.objects.get().fence)
        factories.idle(server)
    elif ended_by == "server_restarted":
        leases.empty_server(server.pk, 1)
    else:
        if ended_by == "expired":
            factories.expire(claim.grant.slot)
        factories.idle(server)
    assert factories.running(where, server).replay_cause == cause


def test_a_warm_turn_has_no_replay_cause() -> None:
    where, server = factories.conversation(), factories.server(slots=1)
    claim = factories.running(where, server)
    turns.finish(claim, DONE)
    leases.release(claim.grant, 50, 3)
    again = factories.running(where, server)
    assert (again.grant.warm, again.replay_cause) == (True, None)
