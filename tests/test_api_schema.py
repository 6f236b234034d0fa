"""The OpenAPI description: valid, complete, true, and read without a network."""

import re
from typing import Any

import pytest
import requests
from django.core.management import call_command
from rest_framework import serializers

from conversations import frames, history
from conversations.api import serializers as shapes
from conversations.api.transfer import ImportedOutput, ImportRefusedOutput
from conversations.models import Conversation
from tests import factories, worker
from tests.test_access import private_routes
from tests.web import Person, Web

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_schema_is_valid_without_a_warning(tmp_path: Any) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "schema.yaml"))


def test_every_route_is_described(web: Web) -> None:
    described = requests.get(f"{web.address}/api/schema/?format=json", timeout=20).json()
    paths = {re.sub(r"\{\w+\}", "<uuid:id_>", path).lstrip("/") for path in described["paths"]}
    assert paths == set(private_routes())
    send = described["paths"]["/api/v1/conversations/{id_}/messages/"]["post"]
    assert set(send["responses"]) >= {"200", "202", "400", "401", "404", "409", "413", "503"}
    assert list(send["responses"]["200"]["content"]) == ["text/event-stream"]


def test_the_page_needs_nothing_from_elsewhere(web: Web) -> None:
    page = requests.get(f"{web.address}/api/docs/", timeout=20)
    assert page.status_code == 200
    assert "//" not in re.sub(r"^\s*//.*$", "", page.text, flags=re.MULTILINE).replace("<!--", "")
    files = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(files) >= 3
    for file in files:
        assert requests.get(f"{web.address}{file}", timeout=20).status_code == 200, file


def keys(shape: type[serializers.Serializer[Any]]) -> set[str]:
    return set(shape().fields)


def test_what_is_sent_is_what_is_described(alice: Person) -> None:
    claim = factories.running()
    factories.wrote(claim, "text")
    row = Conversation.objects.get(pk=claim.conversation)
    messages = [frames.message(view) for view in history.path(row.pk, claim.message)]
    assert set(frames.conversation(row)) == keys(shapes.ConversationOutput)
    assert set(messages[1]) | {"html"} == keys(shapes.MessageOutput), "html comes when it is asked for"
    assert set(messages[1]["generation"]) == keys(shapes.GenerationState)
    assert set(frames.generation(worker.look(claim))) == keys(shapes.GenerationOutput)
    preset = alice.post("presets/", {"name": "Mine"}).json()
    assert set(preset) == keys(shapes.PresetOutput)
    assert set(alice.get("models/").json()[0]) == keys(shapes.ModelOutput)
    refused = alice.say(row, parent=None).json()
    assert set(refused) == keys(shapes.TurnInProgressOutput)
    assert set(alice.post("conversations/", []).json()) == keys(shapes.ProblemOutput)
    refused = alice.request("POST", "/api/v1/import/", data=b"[1]").json()
    assert set(refused) | {"errors"} == keys(ImportRefusedOutput), "errors by field come with another code"
    imported = alice.request(
        "POST", "/api/v1/import/", data=b'{"format": "chatbackend", "version": 1, "conversations": []}'
    )
    assert set(imported.json()) == keys(ImportedOutput)
    assert set(alice.get("conversations/").json()) == keys(shapes.ConversationPage)
    assert set(alice.get(f"conversations/{row.pk}/messages/").json()) == keys(shapes.MessagePage)
