"""How many model tokens a prompt has: at most, without asking anybody; and exactly, as its server counts it.

The server counts what it would be sent, in some milliseconds and beside whatever it is doing (8 ms for 400 tokens of
the demo model on a busy core, 320 ms for 100,000).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from slots.client import LlamaServer, ServerFailed, ServerRefused
from slots.control_tokens import BREAK, SUSPICIOUS
from slots.reading import count

# What a template writes: around each message (5 tokens in ChatML), and once, a system prompt of its own among it.
AROUND, ONCE = 16, 256
NO_SUCH_ROUTE = (404, 405, 501)

_BREAK = len(BREAK.encode())
# What `_at_most` says of a text, as SQL.
AT_MOST = f"(octet_length({{text}}) + {_BREAK} * regexp_count({{text}}, '{SUSPICIOUS.pattern}'))"


def at_most(messages: Sequence[Mapping[str, str]]) -> int:
    """More tokens than these chat messages have: no tokenizer of a chat model makes more of a text than it has bytes.

    Control tokens that may be among them are counted broken, as they are sent.
    """
    return sum(AROUND + _at_most(text) for message in messages for name, text in message.items() if name != "role")


def exactly(client: LlamaServer, asked: Mapping[str, Any]) -> int:
    """As the server counts the prompt of a chat request: `messages`, and what decides how they are written.

    Raises ServerError; ServerRefused also where it has no way to tell.
    """
    try:
        tokens: Any = client.told("/v1/chat/completions/input_tokens", asked).get("input_tokens")
        if not count(tokens):
            raise ServerFailed("The model server does not say how many tokens a prompt has.")
        return int(tokens)
    except ServerRefused as error:
        if error.status not in NO_SUCH_ROUTE:
            raise
    return len(written(client, asked))


def written(client: LlamaServer, asked: Mapping[str, Any]) -> list[int]:
    """The tokens of that prompt. Raises as `exactly` does."""
    prompt = client.told("/apply-template", asked).get("prompt")
    text = {"content": str(prompt), "add_special": True, "parse_special": True}
    tokens = client.told("/tokenize", text).get("tokens")
    if not isinstance(prompt, str) or not isinstance(tokens, list) or not all(map(count, tokens)):
        raise ServerFailed("The model server does not say what tokens a prompt has.")
    return tokens


def _at_most(text: str) -> int:
    return len(text.encode(errors="replace")) + _BREAK * len(SUSPICIOUS.findall(text))
