"""Dates in a system prompt are those of the beginning of the conversation (S9)."""

import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models.functions import Now

from conversations import placeholders, sending
from conversations.models import Conversation, Generation, Message, Preset
from tests import factories
from tests.administrators import administrator, page
from tests.answers import ended
from tests.api import Api
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess

OTHERS = '{"date": 1} {{date}} { date } {Date} {{"a": {}}} {0} {'
BEGAN = datetime(2026, 11, 30, 23, 5, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("It is {date}.", "It is Tuesday, 1 December 2026."),
        ("{time}|{datetime}", "00:05 CET|Tuesday, 1 December 2026, 00:05 CET"),
        (OTHERS, OTHERS),
        ("{date}{date}", "Tuesday, 1 December 2026Tuesday, 1 December 2026"),
    ],
)  # fmt: skip
def test_what_is_replaced_and_what_is_left(written: str, sent: str, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert placeholders.expanded(written, BEGAN) == sent


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("You are kind. {date}", []),
        ('Answer in JSON: {"update": 1}, {{known}}, {{user_name}}, {{}}.', []),
        ("Today is {{CURRENT_DATETIME}}.", ["{{CURRENT_DATETIME}} is sent as written"]),
        (
            "{now} {{aTime}} {{ now() }} {{date}} {now}",
            ["{now}, {{aTime}}, {{ now() }} are sent as written"],
        ),
        ("It is {time}.", ["differ in each new conversation"]),
        ("{datetime} {{weekday}}", ["{{weekday}} is sent as written", "differ in each new conversation"]),
    ],
)
def test_what_is_warned_of(prompt: str, said: list[str]) -> None:
    found = placeholders.warnings(prompt)
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True)), found


@pytest.mark.django_db(transaction=True)
def test_two_turns_a_minute_apart_send_the_same_bytes(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    """Later than it began: were it the moment of asking, the bytes would be others than they are."""
    start_worker(LLAMA_SERVERS=fake_llama.url)
    prompt = "Today is {datetime}. You are the keeper of a lighthouse. " * 6
    where = factories.conversation(system_prompt=prompt, created_at=BEGAN)
    for words in ("Who are you?", "And where?"):
        view = ended(sending.send(where.owner_id, where.pk, uuid.uuid4(), words, None, to_leaf=True))
    first, second = (record.body["messages"][0] for record in fake_llama.requests if not record.raw)
    assert first == second == {"role": "system", "content": placeholders.expanded(prompt, BEGAN)}
    assert "Monday, 30 November 2026, 23:05 UTC" in first["content"]
    assert view.timings
    assert view.timings["cache_n"] >= 0.9 * (view.timings["cache_n"] + view.timings["prompt_n"])
    assert Conversation.objects.get(pk=where.pk).system_prompt == prompt


@pytest.mark.django_db
def test_whoever_saves_a_preset_is_told() -> None:
    api = Api("admin")
    made = api.post("presets/", {"name": "House", "system_prompt": "It is {{CURRENT_TIME}}."}).json()
    assert [sentence[:41] for sentence in made["warnings"]] == ["{{CURRENT_TIME}} is sent as written: only"]
    assert api.patch(f"presets/{made['id']}/", {"system_prompt": "It is {date}."}).json()["warnings"] == []
    shown = api.patch(f"presets/{made['id']}/", {"system_prompt": "It is {time}."}).json()
    assert shown["warnings"] == [placeholders.TIMED] == api.get("presets/").json()[0]["warnings"]


@pytest.mark.django_db
def test_whoever_runs_the_site_is_told_whose_prompts_change_with_every_turn_and_nobody_s_words() -> None:
    for name, causes in (
        ("alice", [None, *["settings"] * 3]),
        ("bob", ["settings", None, None, "evicted", "settings"]),
    ):
        where = factories.conversation(factories.person(name), system_prompt="It is 12:00, my secret")
        for number, cause in enumerate(causes):
            answer = Message.objects.create(conversation=where, role="assistant", text="Hm.")
            Generation.objects.create(
                conversation=where, message=answer, owner=where.owner, client_id=uuid.uuid4(), request_digest=b"",
                kind="send", status="done", finished_at=Now(), timings={"replay_cause": cause, "prompt_n": number},
            )  # fmt: skip
    house = Preset.objects.create(owner=factories.person(), name="House", system_prompt="{time}", for_everybody=True)
    Preset.objects.create(owner=factories.person(), name="Private", system_prompt="{time}")
    admin = administrator()
    html = admin.get("/admin/").content.decode()
    assert re.findall(r"nearly every turn in (.+?) of <a href=[^>]+>(\w+)</a>", html) == [("1 conversation", "alice")]
    assert re.findall(r"The preset <a href=[^>]+>(\w+)</a>, for everybody: {time} and", html) == ["House"]
    listed = admin.get(page(Preset, "changelist")).content.decode()
    assert listed.count("See why") == 1
    assert placeholders.TIMED in admin.get(page(Preset, "change", house.pk)).content.decode()
    assert "secret" not in html
