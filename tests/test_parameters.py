"""How answers are made: what can be set, within which range, and that it is what is sent."""

from typing import Any

import pytest

from conversations import actions, asking, parameters
from conversations.models import Conversation, Generation
from conversations.parameters import PARAMETERS, Choice, Number, Strings
from slots.models import Server
from tests import factories
from tests.answers import ended, written
from tests.api import Api
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db

ALL: dict[str, Any] = {
    "temperature": 0.35, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repeat_penalty": 1.1, "max_tokens": 64, "seed": 7,
    "thinking": "off", "stop": ["\n\n", "END"],
}  # fmt: skip


@pytest.fixture
def api() -> Api:
    return Api()


def thinker(*switches: str) -> Server:
    server = factories.server(model="qwen3")
    Server.objects.filter(pk=server.pk).update(switches=list(switches))
    return server


def test_everything_that_can_be_set_is_kept_and_null_gives_it_back(api: Api) -> None:
    thinker("enable_thinking")
    assert set(ALL) == {parameter.name for parameter in PARAMETERS}
    shown = api.post("conversations/", {"params": {**ALL, "top_k": 20.0}}).json()
    assert shown["params"] == ALL
    where = f"conversations/{shown['id']}/"
    changed = api.patch(where, {"params": {"temperature": None, "seed": 8}}).json()
    assert changed["params"] == {name: value for name, value in ALL.items() if name != "temperature"} | {"seed": 8}
    assert api.patch(where, {"params": {}}).json()["params"] == changed["params"]
    assert api.patch(where, {"title": "Other"}).json()["params"] == changed["params"]
    assert api.patch(where, {"params": None}).json()["params"] == {}
    assert api.post("conversations/", {"params": {"seed": None}}).json()["params"] == {}


@pytest.mark.parametrize(
    ("params", "field", "sentence"),
    [
        ({"temperature": 3.5}, "temperature", "temperature is 3.5: it may be from 0 to 2."),
        ({"temperature": True}, "temperature", "temperature is true: it must be a number from 0 to 2."),
        ({"temperature": "0.5"}, "temperature", "temperature is “0.5”: it must be a number from 0 to 2."),
        ({"temperature": 10**400}, "temperature", f"temperature is 1{'0' * 38}…: it may be from 0 to 2."),
        ({"top_p": -0.1}, "top_p", "top_p is -0.1: it may be from 0 to 1."),
        ({"top_k": 2.5}, "top_k", "top_k is 2.5: it must be a whole number from 0 to 1,000."),
        ({"top_k": 1001}, "top_k", "top_k is 1001: it may be from 0 to 1,000."),
        ({"repeat_penalty": 0}, "repeat_penalty", "repeat_penalty is 0: it may be from 0.5 to 2."),
        ({"max_tokens": []}, "max_tokens", "max_tokens is a list: it must be a whole number from 1 to 8,192."),
        ({"seed": 2**32 - 1}, "seed", "seed is 4294967295: it may be from 0 to 4,294,967,294."),
        ({"stop": "END"}, "stop", "stop is “END”: it must be a list of strings."),
        ({"stop": ["a", None]}, "stop", "stop has null in it: it must be a list of strings."),
        ({"stop": ["\x00"]}, "stop", "stop has a string of 0 characters: each may have from 1 to 100."),
        ({"stop": ["x"] * 9}, "stop", "stop has 9 strings: it may have up to 8."),
        ({"thinking": True}, "thinking", "thinking is true: it may be on, off, low, medium or high."),
        ({"n": 4}, "", f"“n” is no parameter; there are: {', '.join(ALL)}."),
        ({"id_slot": 0, "lora": []}, "", f"“id_slot” and “lora” are no parameters; there are: {', '.join(ALL)}."),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_range_and_nothing_is_changed(
    api: Api, params: dict[str, Any], field: str, sentence: str
) -> None:
    where = factories.conversation(params={"seed": 1})
    for answer in (
        api.patch(f"conversations/{where.pk}/", {"title": "New", "params": {"top_k": 5, **params}}),
        api.post("conversations/", {"params": params}),
        api.post("presets/", {"name": "Mine", "params": params}),
    ):
        said = answer.json()
        assert (answer.status_code, said["code"]) == (400, "invalid")
        assert said["errors"] == {f"params.{field}".rstrip("."): [sentence]}
        assert said["detail"] == (sentence if field else f"params: {sentence}")
    row = Conversation.objects.get()
    assert (row.title, row.params) == ("", {"seed": 1})


def test_several_that_are_wrong_are_all_said(api: Api) -> None:
    said = api.post("conversations/", {"params": {"seed": -1, "top_p": 2, "grammar": "x"}}).json()
    assert set(said["errors"]) == {"params", "params.seed", "params.top_p"}


@pytest.mark.parametrize("words", ['{"params": {"temperature": NaN}}', '{"params": {"temperature": Infinity}}'])
def test_what_is_no_number_in_json_is_none_here(api: Api, words: str) -> None:
    said = api.post("conversations/", words).json()
    assert said["code"] == "malformed_json"


@pytest.mark.parametrize(
    ("switches", "offered"),
    [
        ((), []),
        (("preserve_thinking",), []),
        (("enable_thinking",), ["on", "off"]),
        (("reasoning_effort",), ["low", "medium", "high"]),
        (("enable_thinking", "reasoning_effort"), ["on", "off", "low", "medium", "high"]),
    ],
)
def test_thinking_is_offered_where_the_template_has_it(api: Api, switches: tuple[str, ...], offered: list[str]) -> None:
    thinker(*switches)
    assert [one["thinking"] for one in api.get("models/").json()] == [offered]
    for value in parameters.THINKING.options:
        for model in ({}, {"model": "qwen3"}):
            answer = api.post("conversations/", {**model, "params": {"thinking": value}})
            assert answer.status_code == (201 if value in offered else 400)
            if value not in offered:
                (sentence,) = answer.json()["errors"]["params.thinking"]
                assert sentence.startswith(f"thinking is “{value}”: ")
                assert ("leave it unset" in sentence) == (not offered)


def test_what_stays_as_it_was_is_not_refused_while_its_server_is_away(api: Api) -> None:
    where = factories.conversation(api.user, model="qwen3", params={"thinking": "off"})
    address = f"conversations/{where.pk}/"
    kept = api.patch(address, {"model": "qwen3", "params": {"thinking": "off", "seed": 3}}).json()
    assert (kept["model"], kept["params"]) == ("qwen3", {"thinking": "off", "seed": 3})
    said = api.patch(address, {"model": "other", "params": {"thinking": "on"}}).json()
    assert set(said["errors"]) == {"model"}
    assert set(api.patch(address, {"params": {"thinking": "on"}}).json()["errors"]) == {"params.thinking"}


def test_without_a_server_nobody_thinks(api: Api) -> None:
    said = api.post("conversations/", {"params": {"thinking": "on"}}).json()
    assert said["detail"] == "thinking is “on”: no model that is served has such a switch; leave it unset."


def test_what_is_asked_of_a_server_is_what_was_set_and_nothing_else() -> None:
    question = [{"role": "user", "content": "Hi"}]
    always = {"messages", "stream", "stream_options", "return_progress", "id_slot", "max_tokens"}
    assert set(asking.body(question, {}, 0, 1, reuse=True, decided={})) == always
    decided = asking.decided(ALL, ["enable_thinking"])
    body = asking.body(question, ALL, 10, 1, reuse=True, decided=decided)
    assert {name: body[name] for name in ALL if name in body} == {
        **{name: value for name, value in ALL.items() if name != "thinking"}, "max_tokens": 54,
    }  # fmt: skip
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert set(body) == always | set(ALL) - {"thinking"} | {"chat_template_kwargs"}


@pytest.mark.parametrize(
    ("thinking", "switches", "decided"),
    [
        ("on", ["enable_thinking"], {"enable_thinking": True}),
        ("high", ["reasoning_effort"], {"reasoning_effort": "high"}),
        ("low", ["enable_thinking", "reasoning_effort"], {"enable_thinking": True, "reasoning_effort": "low"}),
        ("off", ["reasoning_effort"], {}),  # its model changed since
        ("on", [], {}),
        (None, ["enable_thinking", "preserve_thinking"], {"preserve_thinking": True}),
        (None, ["clear_thinking"], {"clear_thinking": False}),
    ],
)
def test_a_template_is_told_only_what_it_asks_for(
    thinking: str | None, switches: list[str], decided: dict[str, Any]
) -> None:
    params = {"thinking": thinking} if thinking else {}
    assert asking.decided(params, switches) == decided


def test_an_answer_keeps_what_it_was_asked_for_with(api: Api) -> None:
    where = factories.conversation(api.user, params={"seed": 1}, system_prompt="Be brief.")
    turn = factories.sent(where)
    api.patch(f"conversations/{where.pk}/", {"params": {"seed": 2}, "system_prompt": "Be verbose."})
    row = Generation.objects.get(pk=turn.generation.pk)
    assert (row.params, row.system_prompt) == ({"seed": 1}, "Be brief.")
    assert api.get(f"generations/{row.pk}/").json()["params"] == {"seed": 1}
    api.post(f"generations/{row.pk}/cancel/", None)
    again = api.post(f"messages/{row.message_id}/regenerate/", {"client_id": str(row.pk)}).json()
    assert again["generation"]["params"] == {"seed": 2}
    assert Generation.objects.get(pk=again["generation"]["id"]).system_prompt == "Be verbose."


def test_every_parameter_says_what_it_means() -> None:
    for parameter in PARAMETERS:
        assert parameter.meaning.endswith(".")
        assert parameter.default
        match parameter:
            case Number():
                assert parameter.low < parameter.high
            case Strings() | Choice():
                assert parameter.schema["type"] in ("array", "string")


@pytest.mark.django_db(transaction=True)
def test_whoever_goes_on_with_an_answer_makes_it_as_it_was_begun(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(params={"temperature": 0.3, "stop": ["\n\n"]}, system_prompt="Be brief.")
    turn = factories.sent(where, "Go on for long. [[tokens=60 rate=60]]")
    written(turn)
    actions.change(where.owner_id, where.pk, {"params": {"temperature": 1.5, "stop": None}, "system_prompt": "Sing."})
    fake_llama.restart()
    view = ended(turn)
    assert (view.status, view.params) == ("done", {"temperature": 0.3, "stop": ["\n\n"]})
    next_one = ended(factories.sent(where, "And now?"))
    *begun, last = (record.body for record in fake_llama.requests if not record.raw)
    assert len(begun) > 1
    for body in begun:
        assert (body["temperature"], body["stop"]) == (0.3, ["\n\n"])
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (last["temperature"], "stop" in last) == (1.5, False)
    assert last["messages"][0]["content"] == "Sing."
    assert next_one.params == {"temperature": 1.5}
