"""What is sent to a llama-server: only what is listed here, whatever a client asked for."""

from typing import Any

from conversations.fields import DEFAULT_MAX_TOKENS

DEFAULT_TEMPERATURE = 0.8  # llama-server's own


def body(
    messages: list[dict[str, str]], params: dict[str, Any], tokens_before: int, id_slot: int, reuse: bool
) -> dict[str, Any]:
    """The request for one answer; it always names its slot, and `reuse` of the cache is what it begins with."""
    most = params.get("max_tokens", DEFAULT_MAX_TOKENS)
    request: dict[str, Any] = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "id_slot": id_slot,
        "max_tokens": max(1, most - tokens_before),
        "temperature": params.get("temperature", DEFAULT_TEMPERATURE),
    }
    if not reuse:
        request["cache_prompt"] = False
    if messages and messages[-1]["role"] == "assistant":
        request["add_generation_prompt"] = False
        request["continue_final_message"] = True if messages[-1]["content"] else "reasoning_content"
    return request
