"""Conversations in the admin: seen without words, read on the record, deleted for good."""

import pytest
from django.contrib.admin.models import LogEntry

from conversations.models import Conversation, Generation, Message
from slots.models import Slot
from tests import factories
from tests.administrators import WORDS, administrator, furnish, messages, page, staff
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

LIST = page(Conversation, "changelist")
READ = "Read the text (this is recorded)"


def test_the_page_tells_lengths_states_and_timings_and_no_words() -> None:
    where = furnish()
    Generation.objects.filter(conversation=where).update(
        timings={"ttft_ms": 1234, "tokens_per_second": 41.6, "prompt_n": 512, "cache_n": 338, "replay_cause": "evicted"}
    )
    html = administrator().get(page(Conversation, "change", where.pk)).content.decode()
    for words in (str(len(WORDS[0])), "Answering", "first token after 1.23 s", "42 tokens/s", "replayed: evicted"):
        assert words in html
    assert "512 read, 338 from the cache" in html


def test_reading_needs_a_right_a_post_and_leaves_who_and_when_in_the_history() -> None:
    where = furnish()
    text = page(Conversation, "text", where.pk)
    reader = staff("conversations.view_conversation", "conversations.read_text")
    assert READ in reader.get(page(Conversation, "change", where.pk)).content.decode()
    assert reader.get(text).status_code == 302
    assert not LogEntry.objects.exists()
    html = reader.post(text).content.decode()
    for words in WORDS:
        assert words in html
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.change_message, entry.object_repr) == ("sam", "Read the text.", str(where.pk))
    history = reader.get(page(Conversation, "history", where.pk)).content.decode()
    assert "sam" in history
    assert "Read the text." in history
    assert not any(words in history for words in WORDS)


def test_without_the_right_there_is_no_button_and_no_text() -> None:
    where = furnish()
    client = staff("conversations.view_conversation")
    assert READ not in client.get(page(Conversation, "change", where.pk)).content.decode()
    answer = client.post(page(Conversation, "text", where.pk))
    assert answer.status_code == 403
    assert "a right of its own" in answer.content.decode()
    assert not LogEntry.objects.exists()


def test_other_branches_and_what_a_model_wrote_are_shown_as_text() -> None:
    where = factories.conversation()
    hidden = Message.objects.create(conversation=where, role="user", text="<script>alert(1)</script> & an old branch")
    shown = Message.objects.create(conversation=where, role="user", text="The branch that is shown")
    Conversation.objects.filter(pk=where.pk).update(leaf=shown)
    html = administrator().post(page(Conversation, "text", where.pk)).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; an old branch" in html
    assert html.count("in another branch") == 1
    assert html.index("old branch") < html.index("The branch that is shown")
    assert hidden.pk < shown.pk


def test_the_record_of_a_deletion_names_no_title() -> None:
    where = furnish()
    client = administrator()
    address = page(Conversation, "delete", where.pk)
    asked = client.get(address).content.decode()
    assert "2 messages" in asked
    assert not any(words in asked for words in WORDS)
    client.post(address, {"post": "yes"})
    assert not Conversation.objects.filter(pk=where.pk).exists()
    entry = LogEntry.objects.get()
    assert entry.object_repr == str(where.pk)


def test_deleting_tells_open_tabs_and_stops_what_runs(alice: Person) -> None:
    where = furnish()
    with alice.tab(where) as tab:
        administrator().post(LIST, {"action": "delete_selected", "post": "yes", "_selected_action": [str(where.pk)]})
        assert tab.until("conversation.deleted")["conversation"] == str(where.pk)
    assert not Generation.objects.filter(conversation_id=where.pk).exists()
    assert Slot.objects.filter(condition="stopping").count() == 1, "llama-server is told to stop"


def test_an_answer_is_stopped_from_its_conversation_whether_it_runs_or_waits() -> None:
    where = furnish()
    waiting = Conversation.objects.get(owner__username="bob")
    client = administrator()
    for one in (where, waiting):
        assert "Stop the answer" in client.get(page(Conversation, "change", one.pk)).content.decode()
        client.post(page(Conversation, "stop", one.pk))
    assert Generation.objects.get(conversation=where).stop_asked_at
    assert Generation.objects.get(conversation=waiting).status == "cancelled"
    client.post(page(Conversation, "stop", waiting.pk))
    assert any("any more" in said for said in messages(client, LIST))
    assert staff("conversations.view_conversation").post(page(Conversation, "stop", where.pk)).status_code == 403


def test_who_may_only_see_deletes_nothing() -> None:
    where = furnish()
    client = staff("conversations.view_conversation", "conversations.read_text")
    assert client.post(page(Conversation, "delete", where.pk), {"post": "yes"}).status_code == 403
    client.post(LIST, {"action": "delete_selected", "post": "yes", "_selected_action": [str(where.pk)]})
    client.post(page(Conversation, "change", where.pk), {"title": "changed"})
    assert Conversation.objects.get(pk=where.pk).title == WORDS[2]
