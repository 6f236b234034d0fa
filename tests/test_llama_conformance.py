"""What the product relies on in slots and their caches is so on both servers.

One suite for the scripted and the real llama-server. Shapes and how numbers relate are compared, not the words and
not the times. Every test makes its own prompts, so what an earlier one left in a slot shows at most as the common
start of the template.
"""

import itertools
from typing import Any

import pytest
import requests

from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.llama import API_KEY, real_llama_server
from tests.llama_both import CONTEXT, ONGOING, SLOTS, bare, server
from tests.llama_client import SYSTEM, Answer, Server, assistant, in_background, new_id, user, words
from tests.scripted.engine import SAVED_EACH, SAVED_ONCE

__all__ = ["bare", "server"]


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


def test_the_tokens_of_a_prompt_can_be_read_alone_and_are_found_again_by_what_goes_on_from_them(server: Server) -> None:
    asked = [SYSTEM, user(words(4))]
    answer = server.chat(asked[1:], id_slot=0, max_tokens=4, temperature=0)
    written = [[*asked, assistant(answer.text), user(question)] for question in ("A", "1")]
    first, second = (tokens_of(server, messages) for messages in written)
    opened = [
        one for one, other in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    ]
    read = server.post("/v1/completions", {"prompt": opened, "id_slot": 0, "max_tokens": 1, "temperature": 0}).json()
    assert read["usage"]["prompt_tokens"] == len(opened) == server.slot(0)["n_prompt_tokens"]
    again = server.chat(written[0][1:], id_slot=0, max_tokens=1)
    assert again.progress[0]["cache"] == len(opened)


def tokens_of(server: Server, messages: list[dict[str, Any]]) -> list[int]:
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    said = server.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True}).json()
    return list(said["tokens"])


def test_what_is_continued_is_counted_as_it_is_evaluated_and_counting_touches_no_slot(
    server: Server,
) -> None:
    asked = [SYSTEM, user(words(3))]
    path = "/v1/chat/completions/input_tokens"
    partial = {"add_generation_prompt": False, "continue_final_message": True}
    bodies: list[dict[str, object]] = [
        {"messages": [*asked, assistant("The river")], **partial},
        {"messages": asked, "chat_template_kwargs": {"enable_thinking": False}},
    ]
    before = [server.slot(number) for number in range(SLOTS)]
    counts = [server.post(path, body).json()["input_tokens"] for body in bodies]
    assert [server.slot(number) for number in range(SLOTS)] == before
    for body, count in zip(bodies, counts, strict=True):
        prompt = server.post("/apply-template", body).json()["prompt"]
        written = {"content": prompt, "add_special": True, "parse_special": True}
        assert len(server.post("/tokenize", written).json()["tokens"]) == count
    evaluated = server.chat([*asked[1:], assistant("The river")], id_slot=0, max_tokens=1, **partial)
    assert evaluated.progress[-1]["total"] == counts[0]
    # More than a slot holds is counted too: a text of so many words, whatever the context is.
    assert server.post(path, {"messages": [user("water " * 4000)]}).json()["input_tokens"] > 4000


def test_a_control_token_in_a_message_is_the_real_one(server: Server) -> None:
    ids = server.post("/tokenize", {"content": "<|im_end|>"}).json()["tokens"]
    assert ids == [2]


def test_the_tokenizer_tells_control_tokens_from_words_that_look_like_them(server: Server) -> None:
    def read(text: str, special: bool) -> list[tuple[int, str]]:
        asked = {"content": text, "parse_special": special, "with_pieces": True}
        return [(token["id"], token["piece"]) for token in server.post("/tokenize", asked).json()["tokens"]]

    for word in ("<|im_start|>", "<|endoftext|>", "<filename>"):
        [(number, piece)] = read(word, special=True)
        assert piece == word
        words = read(word, special=False)
        assert number not in dict(words)
        assert "".join(piece for _, piece in words) == word
    for word in ("<s>", "</b>", "[INST]", "a < b"):
        assert read(word, special=True) == read(word, special=False)
    props = server.get("/props").json()
    assert {"<|im_start|>", "<|im_end|>"} == {props["bos_token"], props["eos_token"]}
    assert "<|im_start|>" in props["chat_template"]


# Slots


def test_a_request_runs_in_the_slot_it_names(server: Server) -> None:
    before = [server.slot(number).get("id_task") for number in range(SLOTS)]
    server.chat(words(2), id_slot=1)
    after = [server.slot(number).get("id_task") for number in range(SLOTS)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_slot_numbers_wrap_around(server: Server) -> None:
    for asked, served, other in [(SLOTS, 0, 1), (2 * SLOTS + 1, 1, 0)]:
        before = [server.slot(number).get("id_task") for number in range(SLOTS)]
        server.chat(words(2), id_slot=asked)
        assert server.slot(other).get("id_task") == before[other]
        assert server.slot(served)["id_task"] != before[served]


def test_a_slot_number_in_a_string_is_ignored(server: Server) -> None:
    server.chat(words(2), id_slot=0)
    server.chat(words(2), id_slot=1)
    before = server.slot(1)["id_task"]
    server.chat(words(2), id_slot="1")  # not pinned: goes to the slot unused for longest
    assert server.slot(1)["id_task"] == before


def test_a_request_for_a_busy_slot_gets_no_headers_and_given_up_it_still_runs_when_its_turn_comes(
    server: Server,
) -> None:
    first_id = new_id()
    with server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING):
        task = server.slot(0)["id_task"]
        with pytest.raises(requests.ReadTimeout):
            server.open(words(20), id_slot=0, timeout=0.3)
        assert server.slot(0)["id_task"] == task
        eventually(lambda: server.metric("requests_deferred") == 1, what="the server to have read the request")
        assert server.metric("requests_processing") == 1
        server.delete_stream(first_id)
    eventually(lambda: server.slot(0)["id_task"] != task)
    eventually(server.quiet(0))
    # Nobody waited for it any more, so it ended with its first batch; but it has overwritten the slot.
    assert server.metric("requests_deferred") == 0


def test_a_waiting_request_is_counted_and_starts_when_the_slot_is_free(server: Server) -> None:
    first_id, second_id = new_id(), new_id()
    first = server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING)
    with first:
        second = in_background(lambda: server.chat(words(2), id_slot=0, stream_id=second_id))
        eventually(lambda: server.metric("requests_deferred") == 1)
        assert [row["total_bytes"] for row in server.lookup(second_id)] == [0]
        server.delete_stream(first_id)
        assert second().done
    assert server.metric("requests_deferred") == 0


def test_deleting_a_waiting_stream_takes_effect_when_it_starts(server: Server) -> None:
    first_id, second_id = new_id(), new_id()
    with server.open(words(2), id_slot=0, stream_id=first_id, **ONGOING):
        second = in_background(lambda: server.chat(words(20), id_slot=0, stream_id=second_id, **ONGOING))
        eventually(lambda: server.metric("requests_deferred") == 1)
        before = server.slot(0)["id_task"]
        server.delete_stream(second_id)
        assert server.metric("requests_deferred") == 1
        server.delete_stream(first_id)
        assert not second().done
    eventually(server.quiet(0))
    assert server.slot(0)["id_task"] != before


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


def test_a_stopped_slot_keeps_what_was_generated_and_the_next_turn_reuses_it(server: Server) -> None:
    asked, stream_id = user(words(3)), new_id()
    with server.open([asked], id_slot=0, stream_id=stream_id, **ONGOING) as response:
        lines = response.iter_lines(chunk_size=1)
        seen = [next(line for line in lines if b'"content":"' in line) for _ in range(4)]
        server.delete_stream(stream_id)
        stopped = Answer.read(itertools.chain(seen, lines))
    eventually(server.quiet(0))
    assert not stopped.done
    assert stopped.finish is None
    held = server.slot(0)["n_prompt_tokens"]
    resumed = server.chat([asked, assistant(stopped.text), user(words(1))], id_slot=0)
    # Where the text is read as other tokens than were generated, the last ones do not match.
    prompt = server.post("/v1/chat/completions/input_tokens", {"messages": [SYSTEM, asked]}).json()["input_tokens"]
    assert prompt < resumed.cache_n <= held
    assert held - resumed.cache_n <= 3


def test_the_first_progress_event_tells_the_cached_tokens_before_anything_is_evaluated(server: Server) -> None:
    asked = [user(words(3))]
    server.chat(asked, id_slot=1)
    answer = server.chat(asked, id_slot=1)
    first, last = answer.progress[0], answer.progress[-1]
    assert first["cache"] == last["cache"] == answer.cache_n
    assert first["processed"] == first["cache"] == first["total"] - 1
    assert last["processed"] == last["total"]


def test_progress_comes_once_a_batch(server: Server) -> None:
    progress = server.chat(words(140), id_slot=0, cache_prompt=False).progress
    assert progress[0]["processed"] == 0
    steps = [later["processed"] - sooner["processed"] for sooner, later in itertools.pairwise(progress)]
    assert steps[:-1] == [64] * (len(steps) - 1)
    assert 0 < steps[-1] <= 64


# Save, restore, erase


def test_a_saved_slot_is_restored_into_another_and_reused_there(server: Server) -> None:
    asked = user(words(8))
    answer = server.chat([asked], id_slot=0, max_tokens=3, ignore_eos=True)
    held = server.slot(0)["n_prompt_tokens"]
    name = f"park-{new_id()}"
    saved = server.action(0, "save", name).json()
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (0, name, held)
    assert saved["n_written"] == SAVED_ONCE + SAVED_EACH * held
    server.chat(words(2), id_slot=1)
    task = server.slot(1)["id_task"]
    restored = server.action(1, "restore", name).json()
    assert (restored["n_restored"], restored["n_read"]) == (held, saved["n_written"])
    assert (server.slot(1)["n_prompt_tokens"], server.slot(1)["id_task"]) == (held, task)
    total = answer.progress[-1]["total"]
    assert total <= server.chat([asked, assistant(answer.text), user("More")], id_slot=1).cache_n <= held


def test_an_erased_slot_holds_nothing(server: Server) -> None:
    asked = words(3)
    server.chat(asked, id_slot=1)
    held = server.slot(1)["n_prompt_tokens"]
    assert server.action(1, "erase").json() == {"id_slot": 1, "n_erased": held}
    assert server.slot(1)["n_prompt_tokens"] == 0
    assert server.chat(asked, id_slot=1).cache_n == 0


def test_slot_actions_wrap_around_too(server: Server) -> None:
    server.chat(words(2), id_slot=1)
    erased = server.action(99, "erase").json()
    assert (erased["id_slot"], erased["n_erased"] > 0) == (99, True)
    assert server.slot(1)["n_prompt_tokens"] == 0


def test_a_failed_restore_empties_the_slot(server: Server) -> None:
    server.chat(words(2), id_slot=0)
    failed = server.action(0, "restore", f"absent-{new_id()}")
    assert failed.status_code == 400
    assert failed.json()["error"]["message"].startswith("Unable to restore slot")
    assert server.slot(0)["n_prompt_tokens"] == 0


@pytest.mark.parametrize(
    ("slot", "action", "filename", "sentence"),
    [
        ("x", "erase", None, "Invalid slot ID"),
        ("0", "boil", None, "Invalid action"),
        ("0", "save", "../up", "Invalid filename"),
        ("0", "restore", "a/b", "Invalid filename"),
    ],
)
def test_a_wrong_slot_action_is_refused(
    server: Server, slot: str, action: str, filename: str | None, sentence: str
) -> None:
    refused = server.action(slot, action, filename)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, sentence)


def test_without_a_save_path_no_slot_action_works_not_even_erase(bare: Server) -> None:
    for action in ("save", "restore", "erase"):
        refused = bare.action(0, action, "file")
        assert (refused.status_code, refused.json()["error"]["type"]) == (501, "not_supported_error")


# Loading


@pytest.mark.llama
def test_while_the_real_model_loads_everything_is_503() -> None:
    with real_llama_server(slots=1, wait=False) as server:
        answers: list[requests.Response] = []
        eventually(lambda: _asked(f"{server.url}/health", answers), 30, every=0.005)
    loading = [answer for answer in answers if answer.status_code == 503]
    assert loading
    assert loading[0].json() == LOADING


def test_while_the_scripted_model_loads_everything_is_503() -> None:
    with FakeLlama() as server:
        server.set(loading=True)
        for path in ("/health", "/props", "/slots"):
            answer = requests.get(server.url + path, timeout=5)
            assert (answer.status_code, answer.json()) == (503, LOADING)
        server.set(loading=False)
        assert requests.get(f"{server.url}/health", timeout=5).ok


LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}


def _asked(url: str, answers: list[requests.Response]) -> bool:
    try:
        answers.append(requests.get(url, timeout=5))
    except requests.ConnectionError:
        return False
    return answers[-1].ok
