"""What is sent to a llama-server: only what is listed here, whatever a client asked for."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from conversations.parameters import BY_NAME, DEFAULT_MAX_TOKENS, EFFORTS, ENABLE_THINKING, REASONING_EFFORT, THINKING

# Under llama-server's own names; what is not set is left to its flags.
SENT_AS_IT_IS = [name for name in BY_NAME if name not in ("max_tokens", THINKING.name)]
# Templates that would leave earlier thoughts out of the history unless they are told otherwise.
KEEPS_THOUGHTS = {"preserve_thinking": True, "clear_thinking": False}


def body(
    messages: list[dict[str, str]],
    params: Mapping[str, Any],
    tokens_before: int,
    id_slot: int,
    reuse: bool,
    decided: Mapping[str, Any],
) -> dict[str, Any]:
    """The request for one answer; it always names its slot, and `reuse` of the cache is what it begins with."""
    request: dict[str, Any] = {
        **prompt(messages, decided),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "id_slot": id_slot,
        "max_tokens": max(1, most(params) - tokens_before),
        **{name: params[name] for name in SENT_AS_IT_IS if name in params},
    }
    if not reuse:
        request["cache_prompt"] = False
    return request


def prompt(messages: Sequence[Mapping[str, str]], decided: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request what its prompt is written by."""
    request: dict[str, Any] = {"messages": messages}
    if decided:
        request["chat_template_kwargs"] = dict(decided)
    if messages and messages[-1]["role"] == "assistant":
        request["add_generation_prompt"] = False
        request["continue_final_message"] = True if messages[-1]["content"] else "reasoning_content"
    return request


def most(params: Mapping[str, Any]) -> int:
    """Model tokens that an answer may have."""
    return int(params.get("max_tokens", DEFAULT_MAX_TOKENS))


def decided(params: Mapping[str, Any], switches: Collection[str]) -> dict[str, Any]:
    """What is decided of that which a server's chat template lets a request decide, its `switches`."""
    thinking = params.get(THINKING.name)
    said: dict[str, Any] = {name: keep for name, keep in KEEPS_THOUGHTS.items() if name in switches}
    if thinking and ENABLE_THINKING in switches:
        said[ENABLE_THINKING] = thinking != "off"
    if thinking in EFFORTS and REASONING_EFFORT in switches:
        said[REASONING_EFFORT] = thinking
    return said
