"""The scripted and the real server side by side, as fixtures of the conformance tests (import `server`, `bare`)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from tests.fake_llama import FakeLlama
from tests.llama import API_KEY, fake_llama_process, real_llama_server
from tests.llama_client import Server

SLOTS, CONTEXT = 2, 512
BOTH = ["scripted", pytest.param("real", marks=pytest.mark.llama)]
ONGOING: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}  # long enough to be still running when looked at


class Running(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module", params=BOTH)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two slots of 512 tokens, a key, parking on."""
    files = tmp_path_factory.mktemp("slots")
    started = time.monotonic()
    with ExitStack() as stack:
        running: Running
        if request.param == "real":
            running = stack.enter_context(real_llama_server(slots=SLOTS, slot_context=CONTEXT, slot_save_path=files))
        else:
            # A process too, so that its command line is under test; slow enough to be caught in the act.
            running = stack.enter_context(
                fake_llama_process(
                    slots=SLOTS, n_ctx=CONTEXT, slot_save_path=files, api_key=API_KEY, prefill_rate=800, rate=150
                )
            )
        server = Server(running.url, {"Authorization": f"Bearer {API_KEY}"})
        yield server
        tokens, seconds = server.metric("prompt_tokens_total"), time.monotonic() - started
        print(f"\n{request.param}: {seconds:.1f} s, {tokens} prompt tokens evaluated")  # noqa: T201


@pytest.fixture(scope="module", params=BOTH)
def bare(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One slot of 256 tokens, without key and without parking."""
    with ExitStack() as stack:
        running: Running
        if request.param == "real":
            running = stack.enter_context(real_llama_server(slots=1, slot_context=256, api_key=None))
        else:
            running = stack.enter_context(FakeLlama(slots=1, n_ctx=256))
        yield Server(running.url)
