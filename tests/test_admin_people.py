"""People in the admin: added, helped back in, disabled, given rights, deleted; and invitations."""

import re
import threading

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client, override_settings

from chatbackend.accounts import invites
from chatbackend.accounts.models import Invite, User
from conversations.models import Conversation, Generation, Message
from slots.models import Slot
from tests import factories
from tests.administrators import administrator, furnish, messages, page, signed_in, staff
from tests.answers import written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess
from tests.web import Person, Web

pytestmark = pytest.mark.django_db(transaction=True)

LIST = page(User, "changelist")
ADD = page(User, "add")


def link_on(html: str) -> str:
    """The address in the copy box, without its host."""
    found = re.search(r"<code>http://testserver(/[^<]+)</code>", html)
    assert found, html
    return found[1]


def rights_form(person: User, role: str, *rights: str) -> dict[str, object]:
    return {"username": person.username, "email": person.email, "role": role, "rights": list(rights)}


def test_a_person_is_added_with_a_password_by_the_rules_of_signing_up() -> None:
    factories.person("alice")
    client = administrator()
    for username, password, why in (
        ("ALICE", "", "already exists"),
        ("a b", "", "valid username"),
        ("dora", "12345", "too short"),
        ("dora", "password", "too common"),
    ):
        answer = client.post(ADD, {"username": username, "email": "", "password": password})
        assert answer.status_code == 200
        assert why in answer.content.decode(), username
    client.post(ADD, {"username": "dora", "email": "", "password": factories.PASSWORD})
    dora = User.objects.get(username="dora")
    assert dora.check_password(factories.PASSWORD)
    assert (dora.is_active, dora.is_staff, dora.is_superuser) == (True, False, False)


def test_a_person_added_without_a_password_gets_a_link_to_set_one() -> None:
    answer = administrator().post(ADD, {"username": "dora", "email": "", "password": ""})
    dora = User.objects.get(username="dora")
    assert not dora.has_usable_password()
    visitor = Client()
    form = visitor.get(link_on(answer.content.decode()), follow=True)
    assert form.status_code == 200
    where = form.redirect_chain[-1][0] if form.redirect_chain else link_on(answer.content.decode())
    visitor.post(where, {"new_password1": "a fine new word", "new_password2": "a fine new word"})
    dora.refresh_from_db()
    assert dora.check_password("a fine new word")


def test_a_password_reset_link_is_made_by_post_shown_once_and_on_record() -> None:
    alice = factories.person("alice")
    client = administrator()
    address = page(User, "reset-link", alice.pk)
    assert client.get(address).status_code == 302
    assert not LogEntry.objects.exists()
    answer = client.post(address)
    html = answer.content.decode()
    assert "data-copy" in html
    assert "no-store" in answer.headers["Cache-Control"]
    assert Client().get(link_on(html), follow=True).status_code == 200
    entry = LogEntry.objects.get()
    assert (entry.change_message, entry.object_repr) == ("Made a password-reset link.", "alice")
    User.objects.filter(pk=alice.pk).update(is_active=False)
    assert client.post(address).status_code == 302
    assert any("is disabled" in said for said in messages(client, LIST))


def test_disabling_ends_sessions_sockets_and_running_answers_and_keeps_the_conversations(
    web: Web, alice: Person, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    turn = factories.sent(where, "A long one [[tokens=900 rate=40]]")
    before = written(turn)
    client = administrator()
    with alice.tab() as tab:
        assert alice.get("conversations/").status_code == 200
        asked = client.get(page(User, "disable", alice.pk))
        assert "their conversations are all there" in asked.content.decode()
        client.post(page(User, "disable", alice.pk))
        assert tab.is_turned_away()
    assert alice.get("conversations/").status_code == 401
    eventually(lambda: Generation.objects.get(pk=turn.generation.pk).status == "cancelled", 20)
    assert Message.objects.get(pk=turn.generation.message_id).text.startswith(before.text)
    client.post(page(User, "enable", alice.pk))
    assert alice.get("conversations/").status_code == 401, "what ended stays ended"
    assert web.person("alice").get("conversations/").json()["results"]
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["Disabled.", "Enabled."]


def test_nobody_disables_demotes_or_deletes_themselves() -> None:
    client = administrator()
    me = User.objects.get(username="admin")
    administrator("other")
    html = client.get(page(User, "change", me.pk)).content.decode()
    assert "Disable" not in html.split("<form", 3)[1]
    client.post(page(User, "disable", me.pk))
    assert any("Nobody disables themselves" in said for said in messages(client, LIST))
    answer = client.post(page(User, "change", me.pk), rights_form(me, "person"))
    assert "ask another administrator" in answer.content.decode()
    refused = client.post(page(User, "delete", me.pk), {"post": "yes"})
    assert "nobody deletes themselves" in refused.content.decode()
    me.refresh_from_db()
    assert (me.is_active, me.is_staff, me.is_superuser) == (True, True, True)


def test_two_administrators_who_disable_each_other_at_once_leave_one() -> None:
    clients = {name: administrator(name) for name in ("ann", "ben")}
    targets = {"ann": User.objects.get(username="ben").pk, "ben": User.objects.get(username="ann").pk}
    together = threading.Barrier(2)

    def disable(name: str) -> None:
        together.wait()
        clients[name].post(page(User, "disable", targets[name]))
        connection.close()

    threads = [threading.Thread(target=disable, args=[name]) for name in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert User.objects.filter(is_superuser=True, is_active=True).count() == 1


def test_rights_are_given_in_words_and_taken_back() -> None:
    sam = factories.person("sam")
    client = administrator()
    change = page(User, "change", sam.pk)
    client.post(change, rights_form(sam, "staff", "slots.view_slot", "slots.evict_slot"))
    sam = User.objects.get(pk=sam.pk)
    assert (sam.is_staff, sam.is_superuser) == (True, False)
    assert sam.get_all_permissions() == {"slots.view_slot", "slots.evict_slot"}
    assert client.get(change).content.decode().count("checked") == 3
    client.post(change, rights_form(sam, "administrator"))
    assert User.objects.get(pk=sam.pk).is_superuser
    client.post(change, rights_form(sam, "person", "slots.view_slot"))
    sam = User.objects.get(pk=sam.pk)
    assert (sam.is_staff, sam.is_superuser, sam.get_all_permissions()) == (False, False, set())


def test_staff_who_may_change_people_cannot_raise_themselves_or_reach_other_staff() -> None:
    boss, helper = administrator("boss"), signed_in("helper", is_staff=True)
    del boss, helper
    client = staff("accounts.view_user", "accounts.change_user", "accounts.add_user", "accounts.delete_user")
    alice = factories.person("alice")
    client.post(page(User, "change", alice.pk), rights_form(alice, "administrator", "conversations.read_text"))
    alice.refresh_from_db()
    assert not alice.is_staff
    sam = User.objects.get(username="sam")
    client.post(page(User, "change", sam.pk), rights_form(sam, "administrator"))
    assert not User.objects.get(username="sam").is_superuser
    for name in ("boss", "helper", "sam"):
        reached = User.objects.get(username=name)
        for view in ("reset-link", "disable"):
            assert client.post(page(User, view, reached.pk)).status_code == 403, (name, view)
        assert client.post(page(User, "delete", reached.pk), {"post": "yes"}).status_code == 403
        client.post(LIST, {"action": "delete_selected", "_selected_action": [reached.pk], "post": "yes"})
        assert User.objects.get(username=name).is_active
    client.post(page(User, "disable", alice.pk))
    assert not User.objects.get(username="alice").is_active


def test_deleting_a_person_takes_their_conversations_and_says_how_many(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    bob = factories.conversation(factories.person("bob"))
    where = factories.conversation()
    turn = factories.sent(where, "A long one [[tokens=900 rate=40]]")
    invites.create(factories.person("alice"))
    written(turn)
    client = administrator()
    address = page(User, "delete", where.owner_id)
    html = client.get(address).content.decode()
    assert "1 conversation<" in html
    assert "2 messages" in html
    client.post(address, {"post": "yes"})
    assert not User.objects.filter(username="alice").exists()
    assert list(Conversation.objects.all()) == [bob]
    assert not Message.objects.exists()
    assert Invite.objects.get().created_by is None
    eventually(lambda: not Slot.objects.exclude(phase="free", condition="ready").exists(), what="the slot to be free")
    assert LogEntry.objects.get().object_repr == "alice"


def test_several_people_are_deleted_at_once_but_nobody_whose_deeds_are_on_record() -> None:
    client = administrator()
    other = administrator("other")
    alice, bob = factories.person("alice"), factories.person("bob")
    other.post(page(User, "disable", bob.pk))
    recorded = User.objects.get(username="other")
    refused = client.post(page(User, "delete", recorded.pk), {"post": "yes"})
    assert "stays on record" in refused.content.decode()
    chosen = {"action": "delete_selected", "post": "yes", "_selected_action": [alice.pk, bob.pk]}
    client.post(LIST, {**chosen, "_selected_action": [alice.pk, recorded.pk]})
    assert User.objects.count() == 4
    client.post(LIST, chosen)
    assert set(User.objects.values_list("username", flat=True)) == {"admin", "other"}


def test_the_list_says_who_they_are_and_what_they_have() -> None:
    furnish()
    User.objects.filter(username="bob").update(is_active=False)
    client = administrator()
    html = client.get(LIST).content.decode()
    for words in ("Administrator", "Disabled", "just now"):
        assert words in html
    rows = client.get(LIST, {"role": "administrator"}).context["cl"].result_list
    assert [row.username for row in rows] == ["admin"]
    assert rows[0].conversations_count is None
    found = client.get(LIST, {"q": "alice"}).context["cl"].result_list
    assert [(row.username, row.conversations_count) for row in found] == [("alice", 1)]


def test_an_invitation_is_made_by_post_and_its_link_lets_one_in() -> None:
    client = administrator()
    new = page(Invite, "new")
    assert client.get(new).status_code == 302
    assert not Invite.objects.exists()
    link = link_on(client.post(new).content.decode())
    assert Invite.objects.get().created_by == User.objects.get(username="admin")
    with override_settings(SIGNUP="invite"):
        assert Client().get(link).status_code == 200
    with override_settings(SIGNUP="closed"):
        client.post(new)
        assert any("Signing up is closed" in said for said in messages(client, LIST))
    assert Invite.objects.count() == 1


def test_a_revoked_invitation_lets_nobody_in() -> None:
    code = invites.create(factories.person("bob"))
    client = administrator()
    chosen = {"action": "revoke", "_selected_action": [Invite.objects.get().pk]}
    seer = staff("accounts.view_invite")
    seer.post(page(Invite, "changelist"), chosen)
    invites.check(code)
    client.post(page(Invite, "changelist"), chosen)
    with pytest.raises(invites.Refused):
        invites.check(code)
    client.post(page(Invite, "changelist"), chosen)
    assert any("had expired before" in said for said in messages(client, LIST))
    assert LogEntry.objects.get().change_message == "Revoked."
    assert "Expired" in client.get(page(Invite, "changelist"), {"state": "expired"}).content.decode()
    assert not client.get(page(Invite, "changelist"), {"state": "open"}).context["cl"].result_list
