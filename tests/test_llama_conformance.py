"""One suite for the scripted and the real llama-server: what the product relies on is so on both.

Shapes and how numbers relate are compared, not the words and not the times. Every test makes its own prompts, so
what an earlier one left in a slot shows at most as the common start of the template.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import requests

from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.llama import API_KEY, Answer, fake_llama_process, real_llama_server

SLOTS, CONTEXT = 2, 512
SYSTEM = {"role": "system", "content": "Be brief."}
BOTH = ["scripted", pytest.param("real", marks=pytest.mark.llama)]
ONGOING = {"max_tokens": 300, "ignore_eos": True}  # long enough to be still running when looked at


class Running(Protocol):
    @property
    def url(self) -> str: ...


@dataclass
class Server:
    """A server under test, and the few calls the tests make."""

    url: str
    slot_files: Path | None = None
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {API_KEY}"})

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, headers=self.headers, timeout=30, **options)

    def post(self, path: str, body: object = None) -> requests.Response:
        return requests.post(self.url + path, headers=self.headers, timeout=30, json=body)

    def open(
        self, said: str | list[dict[str, str]], *, stream_id: str | None = None, timeout: float = 60, **body: Any
    ) -> requests.Response:
        """A streaming chat request once its headers are in; the caller reads or closes it."""
        messages = [SYSTEM, *([{"role": "user", "content": said}] if isinstance(said, str) else said)]
        asked = {"messages": messages, "max_tokens": 4, "temperature": 0, "stream": True, "return_progress": True}
        extra = {"X-Conversation-Id": stream_id} if stream_id else {}
        return requests.post(
            f"{self.url}/v1/chat/completions",
            json={**asked, **body},
            headers={**self.headers, **extra},
            stream=True,
            timeout=timeout,
        )

    def chat(self, said: str | list[dict[str, str]], **body: Any) -> Answer:
        with self.open(said, **body) as response:
            assert response.status_code == 200, response.text
            return Answer.read(response.iter_lines(chunk_size=1))

    def slot(self, number: int) -> dict[str, Any]:
        return dict(self.get("/slots").json()[number])

    def quiet(self, number: int) -> Callable[[], bool]:
        return lambda: not self.slot(number)["is_processing"]

    def metric(self, name: str) -> int:
        lines = self.get("/metrics").text.splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))

    def delete_stream(self, stream_id: str) -> requests.Response:
        url = f"{self.url}/v1/stream?conv_id={stream_id}"
        return requests.delete(url, headers=self.headers, timeout=30)

    def stream(self, stream_id: str, start: int = 0) -> requests.Response:
        return self.get(f"/v1/stream?conv_id={stream_id}&from={start}", stream=True)

    def lookup(self, *stream_ids: str) -> list[dict[str, Any]]:
        return list(self.post("/v1/streams/lookup", {"conversation_ids": stream_ids}).json())

    def action(self, slot: int | str, action: str, filename: str | None = None) -> requests.Response:
        return self.post(f"/slots/{slot}?action={action}", {"filename": filename} if filename else {})


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
        server = Server(running.url, files)
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
        yield Server(running.url, headers={})


def words(count: int) -> str:
    """A message nobody has sent before, of about two tokens a word."""
    return " ".join(secrets.token_hex(2) for _ in range(count))


def new_id() -> str:
    return secrets.token_urlsafe(12)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def first_event(response: requests.Response) -> bytes:
    """Reads up to the end of the first event."""
    read = b""
    while b"\n\n" not in read:
        read += response.raw.read1(1)
    return read


# What it is


def test_props_models_and_slots_agree_on_slots_and_context(server: Server) -> None:
    props, slots = server.get("/props").json(), server.get("/slots").json()
    model = server.get("/v1/models").json()["data"][0]
    assert props["total_slots"] == len(slots) == SLOTS
    assert [slot["id"] for slot in slots] == list(range(SLOTS))
    assert props["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"] == CONTEXT
    assert {slot["n_ctx"] for slot in slots} == {CONTEXT}
    assert props["media_marker"].startswith("<__media_")
    assert props["is_sleeping"] is False
    assert props["model_alias"] == model["id"]
    assert {"model_path", "chat_template", "build_info", "endpoint_slots"} <= set(props)


def test_only_health_is_answered_without_the_key(server: Server) -> None:
    assert requests.get(f"{server.url}/health", timeout=5).json() == {"status": "ok"}
    for path in ("/props", "/slots", "/metrics", "/v1/stream?conv_id=x"):
        refused = requests.get(server.url + path, timeout=5)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
    assert requests.get(f"{server.url}/props", headers={"X-Api-Key": API_KEY}, timeout=5).ok


def test_an_unknown_route_is_a_json_404(server: Server) -> None:
    answer = server.get("/no/such/route")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_counting_rendering_and_tokenizing_agree_with_what_is_evaluated(server: Server) -> None:
    messages = [SYSTEM, user(words(4))]
    count = server.post("/v1/chat/completions/input_tokens", {"messages": messages}).json()["input_tokens"]
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    ids = server.post("/tokenize", {"content": prompt}).json()["tokens"]
    assert prompt.endswith("<|im_start|>assistant\n")
    assert len(ids) == count
    assert server.post("/detokenize", {"tokens": ids}).json()["content"] == prompt
    assert server.chat(messages[1:], id_slot=0).progress[-1]["total"] == count


def test_a_control_token_in_a_message_is_the_real_one(server: Server) -> None:
    ids = server.post("/tokenize", {"content": "<|im_end|>"}).json()["tokens"]
    assert ids == [2]


# Slots


def test_a_request_runs_in_the_slot_it_names(server: Server) -> None:
    before = [server.slot(number).get("id_task") for number in range(SLOTS)]
    server.chat(words(2), id_slot=1)
    after = [server.slot(number).get("id_task") for number in range(SLOTS)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_slot_numbers_wrap_around(server: Server) -> None:
    before = [server.slot(number).get("id_task") for number in range(SLOTS)]
    server.chat(words(2), id_slot=SLOTS + 1)
    assert server.slot(0).get("id_task") == before[0]
    assert server.slot(1)["id_task"] != before[1]


def test_a_slot_number_in_a_string_is_ignored(server: Server) -> None:
    server.chat(words(2), id_slot=0)
    server.chat(words(2), id_slot=1)
    before = server.slot(1)["id_task"]
    server.chat(words(2), id_slot="1")  # not pinned: goes to the slot unused for longest
    assert server.slot(1)["id_task"] == before


def test_a_request_for_a_busy_slot_gets_no_headers_until_it_starts(server: Server) -> None:
    first_id, late = new_id(), words(2)
    with server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING):
        with pytest.raises(requests.ReadTimeout):
            server.open(late, id_slot=0, timeout=0.5)
        # Giving up takes the waiting request out of the queue.
        eventually(lambda: server.metric("requests_deferred") == 0)
        assert server.metric("requests_processing") == 1
        server.delete_stream(first_id)
    eventually(server.quiet(0))


def test_a_waiting_request_is_counted_and_starts_when_the_slot_is_free(server: Server) -> None:
    first_id, second_id = new_id(), new_id()
    first = server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING)
    with first:
        second = _in_background(lambda: server.chat(words(2), id_slot=0, stream_id=second_id))
        eventually(lambda: server.metric("requests_deferred") == 1)
        assert [row["total_bytes"] for row in server.lookup(second_id)] == [0]
        server.delete_stream(first_id)
        assert second().done
    assert server.metric("requests_deferred") == 0


def test_deleting_a_waiting_stream_takes_effect_when_it_starts(server: Server) -> None:
    first_id, second_id = new_id(), new_id()
    with server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING):
        second = _in_background(lambda: server.chat(words(30), id_slot=0, stream_id=second_id, **ONGOING))
        eventually(lambda: server.metric("requests_deferred") == 1)
        before = server.slot(0)["id_task"]
        server.delete_stream(second_id)
        assert server.metric("requests_deferred") == 1
        server.delete_stream(first_id)
        assert not second().done
    eventually(server.quiet(0))
    assert server.slot(0)["id_task"] != before


def _in_background(call: Callable[[], Answer]) -> Callable[[], Answer]:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(60)


# What the cache holds


def test_a_slot_reuses_the_longest_common_start_and_evaluates_at_least_one_token(server: Server) -> None:
    asked = user(words(6))
    cold = server.chat([asked], id_slot=0, cache_prompt=False)
    total = cold.progress[-1]["total"]
    assert cold.cache_n == 0
    assert server.chat([asked], id_slot=0).cache_n == total - 1
    grown = server.chat([asked, assistant(cold.text), user(words(2))], id_slot=0)
    assert total <= grown.cache_n < grown.progress[-1]["total"]
    other = server.chat([user(words(6))], id_slot=0)
    assert 0 < other.cache_n < total  # the system prompt is the same


def test_cache_prompt_false_reuses_nothing_and_is_reused_afterwards(server: Server) -> None:
    asked = [user(words(3))]
    server.chat(asked, id_slot=1)
    again = server.chat(asked, id_slot=1, cache_prompt=False)
    assert again.cache_n == 0
    assert server.chat(asked, id_slot=1).cache_n == again.progress[-1]["total"] - 1


def test_a_finished_slot_shows_its_task_and_prompt_plus_completion_less_one(server: Server) -> None:
    answer = server.chat(words(3), id_slot=0, max_tokens=5, ignore_eos=True, stream_options={"include_usage": True})
    eventually(server.quiet(0))
    slot, usage = server.slot(0), answer.usage
    assert slot["n_prompt_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert isinstance(slot["id_task"], int)
    assert server.slot(0) == slot


def test_a_stopped_slot_keeps_what_was_generated(server: Server) -> None:
    asked, stream_id = [user(words(3))], new_id()
    with server.open(asked, id_slot=0, stream_id=stream_id, **ONGOING) as response:
        lines = response.iter_lines(chunk_size=1)
        text = ""
        while len(text) < 12:
            text = Answer.read(iter([*[line for line in [next(lines)] if b"content" in line]])).text + text
        server.delete_stream(stream_id)
        rest = Answer.read(lines)
    eventually(server.quiet(0))
    said = [event for event in rest.deltas if event.get("content")]
    held = server.slot(0)["n_prompt_tokens"]
    total = server.chat(asked, id_slot=1).progress[-1]["total"]
    assert held >= total + len(said)
    assert held < total + 300


def test_the_first_progress_event_tells_the_cached_tokens_before_anything_is_evaluated(server: Server) -> None:
    asked = [user(words(3))]
    server.chat(asked, id_slot=1)
    answer = server.chat(asked, id_slot=1)
    first, last = answer.progress[0], answer.progress[-1]
    assert first["cache"] == last["cache"] == answer.cache_n
    assert first["processed"] == first["cache"] == first["total"] - 1
    assert last["processed"] == last["total"]


def test_progress_comes_once_a_batch(server: Server) -> None:
    progress = server.chat(words(40), id_slot=0, cache_prompt=False).progress
    assert progress[0]["processed"] == 0
    steps = [later["processed"] - sooner["processed"] for sooner, later in zip(progress, progress[1:], strict=False)]
    assert steps[:-1] == [64] * (len(steps) - 1)
    assert 0 < steps[-1] <= 64


# The order of a stream


def test_a_stream_is_role_pieces_finish_with_timings_and_done(server: Server) -> None:
    answer = server.chat(words(2), id_slot=0, max_tokens=3, ignore_eos=True, return_progress=False)
    assert answer.done
    assert answer.deltas[0] == {"role": "assistant", "content": None}
    assert [set(delta) for delta in answer.deltas[1:]] == [{"content"}] * 3 + [set()]
    assert answer.finish == "length"
    assert [("timings" in event, "usage" in event) for event in answer.events][-1] == (True, False)
    assert len({event["id"] for event in answer.events}) == 1
    assert {"object", "model", "created", "choices", "system_fingerprint"} <= set(answer.events[0])


def test_with_include_usage_an_event_without_choices_follows_the_finish(server: Server) -> None:
    answer = server.chat(words(2), id_slot=0, max_tokens=3, stream_options={"include_usage": True})
    finish, last = answer.events[-2:]
    assert finish["choices"][0]["finish_reason"] in ("length", "stop")
    assert "timings" not in finish
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == last["timings"]["cache_n"]
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert last["timings"]["prompt_n"] + last["timings"]["cache_n"] == last["usage"]["prompt_tokens"]


def test_progress_events_come_before_the_role(server: Server) -> None:
    answer = server.chat(words(2), id_slot=0)
    kinds = ["prompt_progress" in event for event in answer.events]
    assert kinds[0]
    assert kinds == sorted(kinds, reverse=True)
    assert all(delta == {"role": "assistant", "content": None} for delta in answer.deltas[: sum(kinds)])


def test_max_tokens_zero_generates_one(server: Server) -> None:
    answer = server.chat(words(2), id_slot=0, max_tokens=0, ignore_eos=True)
    assert answer.timings["predicted_n"] == 1
    assert answer.finish == "length"


def test_without_stream_the_answer_is_one_object(server: Server) -> None:
    body = {"messages": [SYSTEM, user(words(2))], "max_tokens": 3, "id_slot": 0, "temperature": 0}
    answer = server.post("/v1/chat/completions", body).json()
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"]
