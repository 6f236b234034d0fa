"""What is deleted is gone for everybody at once, comes back if asked for in time, and leaves nothing behind."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.models.functions import Now

from chatbackend.accounts.models import User
from conversations import actions, deleting, estimate, leaving, rendered, turns
from conversations.claims import Claim
from conversations.models import Conversation, Generation, Message
from conversations.worker import housekeeping
from slots import leases
from slots.models import PastLease, Server, Slot
from tests import factories, worker
from tests.administrators import administrator, page
from tests.concurrently import at_once
from tests.eventually import eventually
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.web import Person

PARTS: tuple[Any, ...] = (Message, Generation)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    """Alice's, with one answered turn, its slot kept warm."""
    factories.server()
    where = factories.conversation(factories.person("alice"), title="Dragons")
    answered(where, "Tell me of dragons", "They breathe fire.")
    return where


def late(where: Conversation) -> None:
    """Let it have been deleted so long ago that nobody can have it back."""
    Conversation.objects.filter(pk=where.pk).update(deleted_at=Now() - deleting.UNDO)


def traces(*needles: object) -> set[str]:
    """Every table with a row in which one of `needles` stands, in whatever column; found by walking the database."""
    with connection.cursor() as cursor:
        tables = [table.name for table in connection.introspection.get_table_list(cursor) if table.type == "t"]
        found = set()
        for table in tables:
            row = f"SELECT FROM {connection.ops.quote_name(table)} AS t WHERE t::text ILIKE ANY(%s) LIMIT 1"
            cursor.execute(row, [[f"%{needle}%" for needle in needles]])
            found |= {table} if cursor.rowcount else set()
    return found


def ids_of(*conversations: object) -> set[object]:
    """Of them and of all that is in them."""
    mine = [model.objects.filter(conversation__in=conversations).values_list("pk", flat=True) for model in PARTS]
    return {*conversations, *(pk for pks in mine for pk in pks)}


def test_nothing_reaches_what_was_deleted(alice: Person, where: Conversation) -> None:
    message = Message.objects.filter(conversation=where).latest("pk")
    generation = Generation.objects.get(conversation=where)
    Generation.objects.update(usage={"prompt_tokens": 9, "completion_tokens": 9}, timings={})
    assert len(estimate.recent()) == 1
    with alice.tab() as other, alice.tab(where) as tab:
        assert alice.delete(f"conversations/{where.pk}/").status_code == 204
        for one in (other, tab):
            assert one.expect("conversation.deleted")["conversation"] == str(where.pk)
        for type_, fields in {
            "subscribe": {"conversation": str(where.pk)},
            "send": {"conversation": str(where.pk), "client_id": str(uuid.uuid4()), "text": "Hello"},
            "cancel": {"generation": str(generation.pk)},
        }.items():
            tab.send(type_, **fields)
            assert tab.error()["code"] == "not_found"
        tab.send("ping", known={str(generation.pk): 0})
        assert tab.expect("pong")["gone"] == [str(generation.pk)]
    again = {"client_id": str(uuid.uuid4()), "text": "Hello", "parent": None}
    for method, path, body in [
        ("GET", f"conversations/{where.pk}/", None),
        ("PATCH", f"conversations/{where.pk}/", {"title": "Back"}),
        ("DELETE", f"conversations/{where.pk}/", None),
        ("GET", f"conversations/{where.pk}/messages/", None),
        ("POST", f"conversations/{where.pk}/messages/", again),
        ("POST", f"messages/{message.pk}/regenerate/", again),
        ("POST", f"messages/{message.parent_id}/edit/", again),
        ("POST", f"messages/{message.pk}/show/", None),
        ("GET", f"generations/{generation.pk}/", None),
        ("POST", f"generations/{generation.pk}/cancel/", None),
    ]:
        refused(alice.request(method, f"/api/v1/{path}", json=body), 404, "not_found")
    assert alice.get("conversations/").json()["results"] == []
    assert alice.get("search/?q=dragons").json()["results"] == []
    assert estimate.recent() == []
    admin = administrator()
    for path in (page(Conversation, "changelist"), page(Slot, "changelist"), page(User, "changelist")):
        assert str(where.pk) not in admin.get(path).content.decode()
    assert admin.get(page(Conversation, "change", where.pk)).status_code == 302
    assert admin.post(page(Conversation, "text", where.pk)).status_code == 404


def test_it_comes_back_as_it_was_on_every_device_and_finds_its_slot_warm(
    alice: Person, bob: Person, where: Conversation
) -> None:
    before = alice.get(f"conversations/{where.pk}/messages/").json()
    shown = alice.patch(f"conversations/{where.pk}/", {"pinned": True}).json()
    alice.delete(f"conversations/{where.pk}/")
    assert not Slot.objects.filter(holder=where.pk).exists()
    refused(bob.post(f"conversations/{where.pk}/restore/"), 404, "not_found")
    with alice.tab() as tab:
        restored = alice.post(f"conversations/{where.pk}/restore/")
        assert (restored.status_code, restored.json()) == (200, shown)
        assert tab.expect("conversation.updated")["conversation"] == shown
    assert alice.post(f"conversations/{where.pk}/restore/").json() == shown, "a second click"
    assert alice.get(f"conversations/{where.pk}/messages/").json() == before
    alice.say(where)
    assert worker.claimed().replay_cause is None


def test_after_a_while_it_is_removed_with_every_trace(alice: Person, where: Conversation) -> None:
    rendered.finished(Message.objects.get(role="assistant").pk, "They breathe fire.")
    other = factories.sent(factories.conversation(factories.person("bob")), "Of unicorns").message
    factories.parked(Server.objects.get(), where.pk)
    ids = ids_of(where.pk)
    everywhere = {f"conversations_{name}" for name in ("conversation", "message", "generation")}
    assert traces(*ids, "dragons", "breathe") >= everywhere | {"slots_slot", "slots_pastlease", "slots_park"}
    alice.delete(f"conversations/{where.pk}/")
    assert deleting.remove_due() == 0
    late(where)
    refused(alice.post(f"conversations/{where.pk}/restore/"), 404, "not_found")
    assert deleting.remove_due() == 1
    assert traces(*ids, "dragons", "breathe") == set()
    assert PastLease.objects.exists(), "how slots were used is still known"
    assert Message.objects.filter(conversation=other.conversation_id).count() == 2


def test_two_workers_remove_what_is_due_once(alice: Person) -> None:
    for number in range(5):
        late(factories.conversation(factories.person("alice"), title=str(number)))
    assert sum(at_once(deleting.remove_due, deleting.remove_due)) == 5


class TestWhileItIsAnswered:
    @pytest.fixture
    def claim(self, alice: Person) -> Claim:
        claim = factories.running(factories.conversation(factories.person("alice")))
        factories.wrote(claim, "They breathe")
        return claim

    def test_the_answer_is_asked_to_stop_and_its_lease_ends_with_it(self, alice: Person, claim: Claim) -> None:
        alice.delete(f"conversations/{claim.conversation}/")
        assert Generation.objects.get().stop_asked_at
        turns.finish(claim, turns.Ending(Generation.Status.CANCELLED))
        leases.release(claim.grant, 10, 1)
        assert Slot.objects.filter(holder=claim.conversation, phase="idle").exists()
        deleting.remove_due()
        assert not Slot.objects.filter(holder=claim.conversation).exists()
        alice.post(f"conversations/{claim.conversation}/restore/")
        assert Generation.objects.get().status == "cancelled"
        assert alice.get(f"generations/{claim.generation}/").json()["text"] == "They breathe"

    def test_who_waits_leaves_the_queue(self, alice: Person, claim: Claim) -> None:
        waiting = factories.sent(factories.conversation(factories.person("alice"))).generation
        alice.delete(f"conversations/{waiting.conversation_id}/")
        assert Generation.objects.get(pk=waiting.pk).status == "cancelled"

    def test_one_that_is_still_busy_when_it_is_removed_leaves_nothing_either(self, alice: Person, claim: Claim) -> None:
        ids = ids_of(claim.conversation)
        alice.delete(f"conversations/{claim.conversation}/")
        Conversation.objects.update(deleted_at=Now() - deleting.UNDO)
        deleting.remove_due()
        assert Slot.objects.get(pk=claim.grant.slot).condition == "stopping", "llama-server is told to stop"
        assert traces(*ids) == set()
        with pytest.raises(leases.LeaseLost):
            turns.finish(claim, turns.Ending(Generation.Status.DONE))

    def test_a_send_at_the_same_moment_is_stopped_or_refused(self, alice: Person) -> None:
        for _ in range(5):
            where = factories.conversation(factories.person("alice"))
            at_once(lambda: alice.say(where), lambda: alice.delete(f"conversations/{where.pk}/"))  # noqa: B023
            assert not Generation.objects.filter(conversation=where, status__in=Generation.LIVE).exists()


def test_a_removed_account_leaves_nothing_not_even_what_could_be_had_back(alice: Person, where: Conversation) -> None:
    person, pk = where.owner, where.owner_id
    claim = factories.running(factories.conversation(person), factories.server(url="http://other.test"))
    alice.delete(f"conversations/{where.pk}/")
    factories.sent(factories.conversation(factories.person("bob")))
    ids = ids_of(where.pk, claim.conversation)
    leaving.remove(pk)
    person.delete()
    assert traces(*ids, "dragons", "alice") == set()
    assert not [model for model in apps.get_models() if model._meta.managed and about(model, pk)]
    assert Message.objects.count() == 2, "of Bob"


def about(model: Any, person: int) -> bool:
    """Whether a row of `model` points at this person."""
    fields = [field for field in model._meta.concrete_fields if field.related_model is User]
    return any(model._default_manager.filter(**{field.attname: person}).exists() for field in fields)


def test_a_worker_removes_what_is_due_by_itself(
    alice: Person, where: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "REMOVE_SECONDS", 0.05)
    Conversation.objects.update(deleted_at=Now() - timedelta(days=1))
    keeper = housekeeping.Housekeeper()
    keeper.start()
    eventually(lambda: not Conversation.objects.exists(), what="what was deleted while no worker ran to be removed")
    keeper.stop()
    keeper.join()


def test_who_is_disabled_while_one_of_theirs_is_deleted_is_silenced_in_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, stays = (factories.sent().generation for _ in range(2))
    cancel = actions.cancel

    def after_a_deletion(person: int, generation: uuid.UUID) -> object:
        if generation == gone.pk:
            deleting.hide(person, gone.conversation_id)
        return cancel(person, generation)

    monkeypatch.setattr(actions, "cancel", after_a_deletion)
    assert leaving.silence(stays.owner_id) == 1
    for generation in (gone, stays):
        generation.refresh_from_db()
        assert generation.status == Generation.Status.CANCELLED
