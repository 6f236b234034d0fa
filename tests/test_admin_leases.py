"""Evicting and stopping from the admin: by the fence that was shown, with real workers on the scripted llama-server."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from conversations import prefixes, turns
from conversations.models import Conversation, Generation, Message
from slots import leases
from slots.admin import reading
from slots.models import Park, PastLease, Server, Slot
from tests import factories
from tests.administrators import administrator, furnish, lease_on, messages, page, signed_in, staff
from tests.answers import Watched, ended, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, default_answer
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

EVICT = reverse("admin:slots_slot_evict")
STOP = reverse("admin:slots_slot_stop")
LIST = page(Slot, "changelist")


def held_by(where: Conversation, phase: str) -> Slot:
    found = eventually(lambda: Slot.objects.filter(holder=where.pk, phase=phase).first(), what=f"a {phase} lease")
    assert found
    return found


def evict(client: Client, slot: Slot) -> None:
    """As a person does it: from the page of the slot by its button, then the button of the confirmation."""
    address = f"{EVICT}?lease={lease_on(slot.pk)}".replace(":", "%3A")
    assert address in client.get(page(Slot, "change", slot.pk)).content.decode()
    asked = client.get(address)
    assert asked.status_code == 200
    client.post(address, {"lease": lease_on(slot.pk)})


def test_whose_a_parked_file_is_can_be_seen_and_whose_it_is_not() -> None:
    on = factories.server()
    where = factories.conversation(factories.person("alice"))
    factories.parked(on, where.pk)
    factories.parked(on, prefixes._holder("Be brief.", {}, None), 1)
    factories.parked(on, factories.conversation().pk, 2)
    Conversation.objects.exclude(pk=where.pk).delete()
    shown = administrator().get(page(Park, "changelist")).content.decode()
    assert shown.count("alice") == 1
    assert re.findall(r"none: how those of a preset begin|>deleted<", shown) == [
        "none: how those of a preset begin", ">deleted<",
    ]  # fmt: skip


def test_a_lease_for_nobodys_conversation_says_what_it_is_for_and_that_nothing_was_deleted() -> None:
    on = factories.server(slots=2)
    preset = prefixes._holder("Be brief.", {}, None)
    read = leases.acquire(preset, factories.WORKER, [on.pk], work=Slot.Work.PREWARM)
    wipe = leases.acquire_to_wipe(factories.WORKER, on.pk)
    assert read
    assert wipe
    said, client = ["none: how those of a preset begin", "none: parked files are overwritten"], administrator()
    for model in (Slot, PastLease):
        shown = client.get(page(model, "changelist")).content.decode()
        assert sorted(re.findall("none: how those of a preset begin|none: parked files are overwritten", shown)) == said
        assert ">deleted<" not in shown
        for grant in (read, wipe):
            leases.revoke(grant.slot, grant.fence)


def test_after_an_eviction_the_next_message_reads_the_history_again_and_says_so(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    ended(factories.sent(where, "My name is Ada. [[tokens=20]]"))
    slot = held_by(where, "idle")
    evict(administrator(), slot)
    row = Slot.objects.get(pk=slot.pk)
    assert (row.phase, row.holder, row.kv_of, row.kv_tokens) == ("free", None, None, None)
    again = ended(factories.sent(where, "What was my first message?"))
    assert again.text == "Your first message was: My name is Ada. [[tokens=20]]"
    assert again.timings
    assert again.timings["replay_cause"] == "evicted"
    assert again.timings["cache_n"] == 0
    assert fake_llama.requests[-1].body["cache_prompt"] is False


def test_evicting_a_busy_lease_takes_nothing_back_and_the_answer_goes_on(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    turn = factories.sent(where, "A long one, please [[tokens=200 rate=60]]")
    before = written(turn)
    watched = Watched(turn)
    evict(administrator(), held_by(where, "busy"))
    view = watched.until_ended(60)
    assert view.status == "done"
    assert view.text.startswith(before.text)
    assert view.text == default_answer(turn.message.text, 200)
    assert view.timings
    assert view.timings["replay_cause"] == "evicted"
    assert PastLease.objects.filter(holder=where.pk, ended_by="evicted", phase="busy").count() == 1
    assert max(fake_llama.most_at_once.values()) == 1


def test_an_old_page_never_evicts_a_newer_lease() -> None:
    server = factories.server(1)
    where = factories.conversation()
    grant = factories.idle(server, where.pk)
    shown = lease_on(grant.slot)
    newer = factories.leased(server, where.pk)
    client = administrator()
    answer = client.get(EVICT, {"lease": shown})
    assert answer.status_code == 302
    client.post(EVICT, {"lease": shown})
    row = Slot.objects.get(pk=grant.slot)
    assert (row.phase, row.fence) == ("busy", newer.fence)
    assert any("another lease by now" in said for said in messages(client, LIST))
    assert not LogEntry.objects.exists()


def test_a_lease_that_moves_on_between_question_and_button_is_left_alone() -> None:
    server = factories.server(1)
    grant = factories.idle(server)
    client = administrator()
    shown = lease_on(grant.slot)
    assert client.get(EVICT, {"lease": shown}).status_code == 200
    leases.revoke(grant.slot, Slot.objects.get(pk=grant.slot).fence)
    factories.leased(server)
    client.post(EVICT, {"lease": shown})
    assert Slot.objects.get(pk=grant.slot).phase == "busy"


def test_eviction_itself_goes_by_the_fence_whatever_was_looked_at_before() -> None:
    server = factories.server(1)
    grant = factories.leased(server)
    assert not leases.evict(grant.slot, grant.fence - 1)
    assert Slot.objects.get(pk=grant.slot).phase == "busy"
    assert leases.evict(grant.slot, grant.fence)
    row = Slot.objects.get(pk=grant.slot)
    assert (row.phase, row.condition, row.stream_id) == ("free", "stopping", grant.stream_id)
    assert not leases.evict(grant.slot, grant.fence)


def test_what_is_no_lease_is_evicted_as_little_as_a_free_slot() -> None:
    factories.server(1)
    free = Slot.objects.get()
    client = administrator()
    for words in ("", "x", "1", "1:2:3", "-1:5", "1:99999999999999999999999999", lease_on(free.pk)):
        assert client.get(EVICT, {"lease": words}).status_code == 302, words
        assert client.post(EVICT, {"lease": words}).status_code == 302, words
    assert Slot.objects.get().fence == free.fence


def test_several_are_evicted_together_from_the_list_and_it_is_on_record_who_did_what_to_whom() -> None:
    server = factories.server(3)
    alice, bob = factories.conversation(), factories.conversation(factories.person("bob"))
    for where in (alice, bob):
        factories.idle(server, where.pk)
    client = administrator()
    chosen = {"action": "evict", "_selected_action": list(Slot.objects.values_list("pk", flat=True))}
    asked = client.post(LIST, chosen, follow=True)
    html = asked.content.decode()
    assert "reads the history again" in html
    assert html.count('name="lease"') == 2
    client.post(EVICT, {"lease": [lease_on(slot.pk) for slot in Slot.objects.filter(phase="idle")]})
    assert not Slot.objects.exclude(phase="free").exists()
    said = "\n".join(LogEntry.objects.values_list("change_message", flat=True))
    assert f"conversation {alice.pk} (alice)" in said
    assert f"conversation {bob.pk} (bob)" in said
    assert {entry.user.username for entry in LogEntry.objects.all()} == {"admin"}


def test_stopping_an_answer_keeps_what_was_written(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    turn = factories.sent(where, "A long one [[tokens=600 rate=40]]")
    before = written(turn)
    slot = held_by(where, "busy")
    client = administrator()
    asked = client.get(STOP, {"lease": lease_on(slot.pk)})
    assert "what is written so far stays" in asked.content.decode()
    client.post(STOP, {"lease": lease_on(slot.pk)})
    view = ended(turn)
    assert view.status == "cancelled"
    assert view.text.startswith(before.text)
    assert Message.objects.get(pk=turn.generation.message_id).text == view.text
    assert held_by(where, "idle").pk == slot.pk
    assert f"Stopped the answer {turn.generation.pk}" in LogEntry.objects.get().change_message


def test_only_the_answer_that_was_shown_is_stopped() -> None:
    server = factories.server(1)
    where = factories.conversation()
    first = factories.running(where, server)
    shown = lease_on(first.grant.slot)
    turns.finish(first, turns.Ending(Generation.Status.DONE))
    leases.release(first.grant, 10, 1)
    second = factories.running(where, server)
    client = administrator()
    client.post(STOP, {"lease": shown})
    assert Generation.objects.get(pk=second.generation).stop_asked_at is None
    assert any("nothing was stopped" in said for said in messages(client, LIST))


def test_rights_to_see_evict_and_stop_are_three() -> None:
    where = furnish()
    lease = lease_on(Slot.objects.get(holder=where.pk).pk)
    seer = staff("slots.view_slot")
    html = seer.get(page(Slot, "change", Slot.objects.get(holder=where.pk).pk)).content.decode()
    assert "Evict" not in html
    assert "Stop generation" not in html
    for address in (EVICT, STOP):
        assert seer.post(address, {"lease": lease}).status_code == 403
    evictor = staff("slots.view_slot", "slots.evict_slot")
    assert evictor.post(STOP, {"lease": lease}).status_code == 403
    stopper = staff("slots.view_slot", "conversations.stop_generation")
    assert stopper.post(EVICT, {"lease": lease}).status_code == 403
    assert Generation.objects.get(conversation=where).stop_asked_at is None
    assert stopper.post(STOP, {"lease": lease}).status_code == 302
    assert Generation.objects.get(conversation=where).stop_asked_at
    assert signed_in("alice").post(EVICT, {"lease": lease}).status_code == 403


def test_slots_show_whose_they_are_and_what_runs_on_them() -> None:
    where = furnish()
    html = administrator().get(LIST).content.decode()
    assert "alice</a>" in html
    assert str(where.pk) in html
    assert "an answer for" in html
    for word in ("Busy", "Idle", "100 tokens"):
        assert word in html


def test_the_history_is_filtered_by_cause_day_server_and_holder_without_counting_it_all() -> None:
    server, other = factories.server(1), factories.server(1, url="http://other.test")
    where = factories.conversation()
    factories.idle(server, where.pk)
    for _ in range(3):
        factories.idle(other)
    client = administrator()
    address = page(PastLease, "changelist")

    def shown(**asked: str | int) -> int:
        answer = client.get(address, asked)
        assert answer.status_code == 200
        return len(answer.context["cl"].result_list)

    everything = PastLease.objects.count()
    assert everything > 3
    assert shown() == everything
    assert shown(holder=str(where.pk)) == PastLease.objects.filter(holder=where.pk).count()
    assert shown(ended_by__exact="evicted") == PastLease.objects.filter(ended_by="evicted").count()
    assert shown(slot__server__id__exact=server.pk) == PastLease.objects.filter(slot__server=server).count()
    assert shown(ended="1") == everything
    fences = [past.fence for past in client.get(address).context["cl"].result_list]
    assert fences == sorted(fences, reverse=True)
    assert Server.objects.count() == 2


def test_a_long_history_is_counted_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_COUNTED", 3)
    server = factories.server(1)
    for _ in range(5):
        factories.idle(server)
    html = administrator().get(page(PastLease, "changelist")).content.decode()
    assert "More than are counted" in html


def test_every_kind_of_work_has_its_words_now_and_in_history() -> None:
    server = factories.server(slots=1)
    client = administrator()
    for work in Slot.Work:
        grant = factories.leased(server)
        Slot.objects.filter(pk=grant.slot).update(work=work)
        assert client.get(LIST).status_code == 200
        assert client.get(EVICT, {"lease": lease_on(grant.slot)}).status_code == 200
        leases.give_back(grant)
    assert set(PastLease.objects.values_list("work", flat=True)) == set(Slot.Work)
    assert client.get(page(PastLease, "changelist")).status_code == 200
