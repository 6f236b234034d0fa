"""What the product relies on in streams, stopping and continuing is so on both servers.

One suite for the scripted and the real llama-server. Shapes and how numbers relate are compared, not the words and
not the times. Every test makes its own prompts, so what an earlier one left in a slot shows at most as the common
start of the template.
"""

from typing import Any

import pytest

from tests.eventually import eventually
from tests.llama_both import CONTEXT, ONGOING, bare, server
from tests.llama_client import SYSTEM, Answer, Server, assistant, new_id, user, words

__all__ = ["bare", "server"]


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


# Resumable streams


def test_a_stream_is_read_on_after_its_request_was_closed_whole_or_from_an_event_on(server: Server) -> None:
    stream_id = new_id()
    server.open(words(3), id_slot=0, stream_id=stream_id, max_tokens=12, ignore_eos=True).close()
    with server.stream(stream_id) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        whole = response.content
    answer = Answer.read(iter(whole.split(b"\n")))
    assert answer.done
    assert answer.timings["predicted_n"] == 12
    for boundary in (whole.index(b"\n\n") + 2, len(whole) // 2, len(whole)):
        with server.stream(stream_id, boundary) as response:
            assert response.content == whole[boundary:]


def test_an_offset_that_is_not_there_yet_is_waited_for(server: Server) -> None:
    stream_id = new_id()
    server.open(words(2), id_slot=0, stream_id=stream_id, max_tokens=12, ignore_eos=True).close()
    with server.stream(stream_id, 2000) as response:
        late = response.content
    with server.stream(stream_id) as response:
        whole = response.content
    assert late == whole[2000:] != b""
    with server.stream(stream_id, len(whole) + 1) as response:
        assert (response.status_code, response.content) == (200, b"")
    assert server.get(f"/v1/stream?conv_id={stream_id}&from=abc").status_code == 400
    assert server.get("/v1/stream").status_code == 400


def test_a_stream_is_followed_while_it_is_produced(server: Server) -> None:
    stream_id = new_id()
    server.open(words(2), id_slot=0, stream_id=stream_id, **ONGOING).close()
    with server.stream(stream_id) as response:
        assert response.raw.read1(64)
        assert server.slot(0)["is_processing"]
        assert [row["is_done"] for row in server.lookup(stream_id)] == [False]
        assert server.delete_stream(stream_id).status_code == 204
        rest = response.raw.read()
    assert b"[DONE]" not in rest
    assert b'"finish_reason":"' not in rest
    eventually(server.quiet(0), 3)
    assert server.lookup(stream_id) == []
    assert server.stream(stream_id).status_code == 404


def test_lookup_lists_the_streams_it_knows(server: Server) -> None:
    stream_id = new_id()
    server.chat(words(2), id_slot=0, stream_id=stream_id)
    # Its last byte is out a moment before the real one counts it as done.
    eventually(lambda: server.lookup(stream_id)[0]["is_done"])
    (row,) = server.lookup("nobody-has-this", stream_id)
    with server.stream(stream_id) as response:
        assert row["total_bytes"] == len(response.content)
    assert row["conversation_id"] == stream_id
    assert row["completed_at"] >= row["started_at"] > 0


def test_deleting_an_unknown_stream_is_no_error(server: Server) -> None:
    assert server.delete_stream(new_id()).status_code == 204
    assert server.stream(new_id()).status_code == 404


def test_a_second_request_with_the_same_stream_id_stops_the_first(server: Server) -> None:
    stream_id = new_id()
    with server.open(words(2), id_slot=0, stream_id=stream_id, **ONGOING) as first:
        second = server.chat(words(2), id_slot=1, stream_id=stream_id)
        assert not Answer.read(first.iter_lines()).done
    assert second.done
    eventually(server.quiet(0))


def test_a_stop_in_prefill_ends_it_with_the_batch(server: Server) -> None:
    stream_id = new_id()
    with server.open(words(300), id_slot=0, cache_prompt=False, stream_id=stream_id) as response:
        first = next(response.iter_lines(chunk_size=1))
        server.delete_stream(stream_id)
        assert not Answer.read(response.iter_lines()).done
    total = Answer.read(iter([first])).progress[0]["total"]
    eventually(server.quiet(0))
    assert server.slot(0)["n_prompt_tokens"] <= 3 * 64 < total


def test_a_request_without_stream_id_ends_with_its_connection(server: Server) -> None:
    server.open(words(2), id_slot=0, **ONGOING).close()
    eventually(server.quiet(0))
    assert server.slot(0)["n_prompt_tokens"] < 300


# Limits and refusals


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers_and_the_cache_survives(server: Server) -> None:
    asked = words(2)
    server.chat(asked, id_slot=0)
    refused = server.open(words(600), id_slot=0)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", CONTEXT)
    assert error["n_prompt_tokens"] > CONTEXT
    again = server.chat(asked, id_slot=0)
    assert again.cache_n == again.progress[-1]["total"] - 1


def test_an_answer_that_fills_the_context_ends_with_length(bare: Server) -> None:
    options: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "stream_options": {"include_usage": True}}
    answer = bare.chat(words(100), id_slot=0, **options)
    assert answer.finish == "length"
    assert answer.usage["total_tokens"] == 256
    assert answer.usage["completion_tokens"] < 200


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "'messages' is required"),
        ({"messages": [user("Hi"), assistant("a"), assistant("b")]}, "Cannot have 2 or more assistant messages"),
        ({"messages": [user("Hi"), assistant("a")], "continue_final_message": True}, "Cannot set both"),
        ({"messages": [{"role": "user", "content": 5}]}, "Expected 'content' to be a string or an array"),
    ],
)
def test_a_body_it_cannot_use_is_a_400(server: Server, body: dict[str, Any], sentence: str) -> None:
    refused = server.post("/v1/chat/completions", body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert refused.json()["error"]["message"].startswith(sentence)


# Continuing a partial answer


def test_the_explicit_pair_continues_a_partial_and_streams_only_what_is_new(server: Server) -> None:
    asked, pair = user(words(3)), {"continue_final_message": True, "add_generation_prompt": False}
    whole = server.chat([asked], id_slot=0, max_tokens=8, ignore_eos=True).text
    part = server.chat([asked], id_slot=1, max_tokens=4, ignore_eos=True).text
    assert whole.startswith(part)
    rest = server.chat([asked, assistant(part)], id_slot=1, max_tokens=4, ignore_eos=True, **pair)
    assert not rest.text.startswith(part)
    assert rest.cache_n >= rest.progress[-1]["total"] - 2
    assert rest.deltas[0] == {"role": "assistant", "content": None}


def test_a_system_prompt_alone_can_be_read_without_an_answer_being_opened(server: Server) -> None:
    alone = {"messages": [{"role": "system", "content": "Be brief."}], "add_generation_prompt": False}
    prompt = server.post("/apply-template", alone).json()["prompt"]
    assert prompt.endswith("Be brief.<|im_end|>\n")


def test_an_empty_partial_leaves_the_prompt_without_an_assistant_turn(server: Server) -> None:
    messages, pair = [user("Hi"), assistant("")], {"continue_final_message": True, "add_generation_prompt": False}
    prompt = server.post("/apply-template", {"messages": messages, **pair}).json()["prompt"]
    assert prompt.endswith("Hi<|im_end|>\n")
