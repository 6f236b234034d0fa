"""Presets: saved once, copied into conversations, one's own or for everybody."""

import functools
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection

from chatbackend.accounts.models import User
from conversations import presets
from conversations.models import Conversation, Preset
from tests import factories
from tests.administrators import administrator, page, staff
from tests.api import Api
from tests.concurrently import at_once

pytestmark = pytest.mark.django_db

PIRATE: dict[str, Any] = {
    "name": "Pirate", "system_prompt": "Talk like a pirate.", "params": {"temperature": 1.2, "stop": ["Arr"]},
}  # fmt: skip


@pytest.fixture
def api() -> Api:
    return Api()


def test_a_preset_is_saved_read_changed_and_deleted(api: Api) -> None:
    made = api.post("presets/", PIRATE)
    shown = made.json()
    assert made.status_code == 201
    assert {name: shown[name] for name in PIRATE} == PIRATE
    assert (shown["model"], shown["for_everybody"], shown["mine"]) == ("", False, True)
    where = f"presets/{shown['id']}/"
    assert api.get(where).json() == shown
    assert api.get("presets/").json() == [shown]
    changed = api.patch(where, {"name": " Captain ", "params": {"stop": None, "seed": 3}}).json()
    assert (changed["name"], changed["params"]) == ("Captain", {"temperature": 1.2, "seed": 3})
    assert changed["system_prompt"] == PIRATE["system_prompt"]
    assert api.delete(where).status_code == 204
    assert api.get(where).status_code == 404


def test_a_conversation_begins_with_its_values_and_keeps_them(api: Api) -> None:
    factories.server(model="smollm2")
    preset = api.post("presets/", {**PIRATE, "model": "smollm2"}).json()
    begun = api.post("conversations/", {"preset": preset["id"]}).json()
    assert (begun["model"], begun["system_prompt"], begun["params"]) == (
        "smollm2", PIRATE["system_prompt"], PIRATE["params"],
    )  # fmt: skip
    other = api.post("conversations/", {
        "preset": preset["id"], "model": "", "title": "Mine", "params": {"stop": None, "seed": 5},
    }).json()  # fmt: skip
    assert (other["model"], other["title"], other["params"]) == ("", "Mine", {"temperature": 1.2, "seed": 5})
    assert other["system_prompt"] == PIRATE["system_prompt"]
    api.patch(f"presets/{preset['id']}/", {"system_prompt": "Talk like a judge.", "params": None})
    api.delete(f"presets/{preset['id']}/")
    assert api.get(f"conversations/{begun['id']}/").json()["params"] == PIRATE["params"]


def test_a_preset_whose_model_is_gone_says_so_and_can_be_used_with_another(api: Api) -> None:
    gone = Preset.objects.create(owner=api.user, name="Old", model="llama1")
    factories.server(model="smollm2")
    said = api.post("conversations/", {"preset": str(gone.pk)}).json()
    assert "the model 'llama1', which no server has; served: smollm2" in said["errors"]["preset"][0]
    assert not Conversation.objects.exists()
    assert api.post("conversations/", {"preset": str(gone.pk), "model": ""}).status_code == 201


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "name", "required"),
        ({"name": " \x00 "}, "name", "This is empty"),
        ({"name": "x" * 101}, "name", "101 characters; 100"),
        ({"name": "Pirate"}, "name", "You have a preset “Pirate” already: choose another name."),
        ({"name": "P", "model": "gpt-9"}, "model", "No server has the model 'gpt-9'"),
        ({"name": "P", "for_everybody": True}, "for_everybody", "no such field"),
    ],
)
def test_what_is_wrong_with_a_preset_is_said_by_field(api: Api, body: Any, field: str, words: str) -> None:
    api.post("presets/", PIRATE)
    said = api.post("presets/", body).json()
    assert (said["code"], set(said["errors"])) == ("invalid", {field})
    assert words in said["errors"][field][0]
    assert Preset.objects.count() == 1


def test_a_name_is_taken_only_by_one_s_own(api: Api) -> None:
    first, second = (api.post("presets/", {"name": name}).json()["id"] for name in ("One", "Two"))
    assert Api("bob").post("presets/", {"name": "One"}).status_code == 201
    said = api.patch(f"presets/{second}/", {"name": "One", "system_prompt": "lost?"}).json()
    assert said["errors"] == {"name": ["You have a preset “One” already: choose another name."]}
    assert Preset.objects.get(pk=second).system_prompt == ""
    assert api.patch(f"presets/{first}/", {"name": "One"}).status_code == 200


def test_one_for_everybody_is_used_by_all_and_changed_by_its_owner_alone(api: Api) -> None:
    bob = Api("bob")
    house = api.post("presets/", {**PIRATE, "name": "House"}).json()["id"]
    bob.post("presets/", {"name": "Zebra"})
    assert bob.get(f"presets/{house}/").status_code == 404
    Preset.objects.filter(pk=house).update(for_everybody=True)
    assert [(one["name"], one["mine"]) for one in bob.get("presets/").json()] == [("Zebra", True), ("House", False)]
    assert api.patch(f"presets/{house}/", {"name": "No more"}).json()["code"] == "read_only", "not an administrator"
    assert not api.get(f"presets/{house}/").json()["mine"]
    User.objects.filter(pk=api.user.pk).update(is_staff=True, is_superuser=True)
    begun = bob.post("conversations/", {"preset": house}).json()
    assert begun["system_prompt"] == PIRATE["system_prompt"]
    for refused in (bob.patch(f"presets/{house}/", {"name": "Bob's"}), bob.delete(f"presets/{house}/")):
        assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
    assert api.patch(f"presets/{house}/", {"name": "The house"}).json()["name"] == "The house"


@pytest.mark.django_db(transaction=True)
def test_nobody_has_more_than_their_number_of_them(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MOST", 3)

    def save(name: str) -> Any:
        try:
            return api.post("presets/", {"name": name})
        finally:
            connection.close()

    answers = at_once(*(functools.partial(save, f"{number}") for number in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [400] * 5
    said = next(answer.json() for answer in answers if answer.status_code == 400)
    assert said["detail"] == "You have 3 presets, which is as many as one person may: delete one first."
    assert Api("bob").post("presets/", {"name": "1"}).status_code == 201


def test_they_go_with_their_owner(api: Api) -> None:
    api.post("presets/", PIRATE)
    api.post("presets/", {"name": "House"})
    Preset.objects.filter(name="House").update(for_everybody=True)
    Api("bob").post("presets/", PIRATE)
    lost = administrator().get(page(User, "delete", api.user.pk)).content.decode()
    assert "<li>1 preset</li><li>1 offered preset</li>" in lost
    api.user.delete()
    assert [preset.owner.username for preset in Preset.objects.all()] == ["bob"]


def test_an_administrator_offers_their_own_to_everybody_and_sees_nobody_else_s(api: Api) -> None:
    admin, listed = administrator(), "/admin/conversations/preset/"
    api.post("presets/", {"name": "Alice's secret"})
    own = Preset.objects.create(owner=factories.person("admin"), name="House", system_prompt="Be kind.")
    assert "secret" not in (html := admin.get(listed).content.decode())
    assert "House" in html
    wanted = {"action": "offer", "_selected_action": [str(own.pk), str(Preset.objects.get(owner=api.user).pk)]}
    admin.post(listed, wanted)
    assert [(one["name"], one["mine"]) for one in api.get("presets/").json()] == [
        ("Alice's secret", True), ("House", False),
    ]  # fmt: skip
    assert not Preset.objects.get(owner=api.user).for_everybody
    assert "Be kind." in admin.get(f"{listed}{own.pk}/change/").content.decode()
    assert staff().get(listed).status_code == 403
    staff("conversations.change_preset").post(listed, wanted | {"action": "withdraw"})
    assert [one["name"] for one in api.get("presets/").json()] == ["Alice's secret"]
    assert list(LogEntry.objects.values_list("change_message", flat=True).order_by("pk")) == [
        "Offered to everybody.", "No longer offered to everybody.",
    ]  # fmt: skip
