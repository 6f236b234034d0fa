"""What a probe relies on is so on both servers: raw completions, and who finds what again on default flags."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from tests.fake_llama import FakeLlama
from tests.llama import real_llama_server
from tests.llama_both import BOTH, Running, bare, server
from tests.llama_client import Server, new_id, words

__all__ = ["bare", "server"]


@pytest.fixture(scope="module", params=BOTH)
def defaults(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Started without -np: four slots over one pool, a RAM cache beside them."""
    with ExitStack() as stack:
        running: Running
        if request.param == "real":
            flags = ("-np", "-1", "-c", "1024", "-b", "64", "-ub", "64")
            running = stack.enter_context(real_llama_server(slots=4, flags=flags, api_key=None))
        else:
            running = stack.enter_context(FakeLlama(n_ctx=1024, cache_ram=True, kv_unified=True))
        yield Server(running.url)


@pytest.fixture(scope="module", params=BOTH)
def ram_cache(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Started with -np 2 and nothing else: a context of its own for each slot, a RAM cache beside them."""
    with ExitStack() as stack:
        running: Running
        if request.param == "real":
            running = stack.enter_context(real_llama_server(slots=2, flags=("-b", "64", "-ub", "64"), api_key=None))
        else:
            running = stack.enter_context(FakeLlama(slots=2, n_ctx=512, cache_ram=True))
        yield Server(running.url)


def raw(server: Server, prompt: str | list[int], slot: int) -> list[dict[str, Any]]:
    """The events of one raw completion of one token, without the [DONE] that must be the last."""
    body = {
        "prompt": prompt, "id_slot": slot, "max_tokens": 1, "temperature": 0, "stream": True, "return_progress": True,
    }  # fmt: skip
    lines = [line for line in server.post("/v1/completions", body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def reused(server: Server, prompt: str, slot: int) -> int:
    return int(raw(server, prompt, slot)[-1]["timings"]["cache_n"])


def test_a_raw_completion_is_a_stream_of_texts_with_progress_first_and_figures_last(server: Server) -> None:
    prompt = words(5)
    first, *_, last = events = raw(server, prompt, 1)
    assert {event["object"] for event in events} == {"text_completion"}
    assert first["prompt_progress"]["cache"] == first["prompt_progress"]["processed"] == 0
    assert set(first["choices"][0]) == {"text", "index", "logprobs", "finish_reason"}
    assert last["choices"][0]["finish_reason"] == "length"
    total = last["usage"]["prompt_tokens"]
    assert total == first["prompt_progress"]["total"]
    longer = raw(server, f"{prompt} river", 1)[-1]["timings"]
    assert longer["cache_n"] == total


def test_a_raw_completion_can_be_read_again_under_its_stream_id(server: Server) -> None:
    stream_id = new_id()
    asked = {"prompt": words(3), "id_slot": 0, "max_tokens": 2, "stream": True}
    headers = {**server.headers, "X-Conversation-Id": stream_id}
    said = requests.post(f"{server.url}/v1/completions", json=asked, headers=headers, timeout=30)
    assert server.stream(stream_id).content == said.content


def test_with_a_ram_cache_one_slot_finds_a_prompt_again_that_another_replaced(ram_cache: Server) -> None:
    first, second = words(8), words(8)
    reused(ram_cache, first, 0)
    assert reused(ram_cache, second, 0) <= 2
    assert reused(ram_cache, f"{first} river", 0) > 8
    assert reused(ram_cache, words(8), 1) <= 2
    assert reused(ram_cache, f"{first} river green", 0) > 8


def test_on_default_flags_a_slot_loses_its_cache_when_another_begins(defaults: Server) -> None:
    first, second = words(8), words(8)
    reused(defaults, first, 0)
    assert reused(defaults, second, 0) <= 2
    assert reused(defaults, f"{first} river", 0) > 8
    assert reused(defaults, words(8), 1) <= 2
    assert reused(defaults, f"{first} river green", 0) <= 2
    assert defaults.slot(1)["n_prompt_tokens"] == 0


def test_strict_slots_find_nothing_again_that_was_replaced_and_lose_nothing_to_each_other(server: Server) -> None:
    first, second = words(8), words(8)
    reused(server, first, 0)
    reused(server, second, 0)
    assert reused(server, f"{first} river", 0) <= 2
    reused(server, words(8), 1)
    assert reused(server, f"{first} river green", 0) > 8


def test_a_refused_file_name_tells_whether_there_is_a_save_path(server: Server, bare: Server) -> None:
    assert server.action(0, "save", "../not a name").status_code == 400
    assert bare.action(0, "save", "../not a name").status_code == 501
