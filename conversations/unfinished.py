"""What a person is told of an answer that did not come to its end: what happened, what was kept, what to do.

Never in the words of a server or a library: those are in the worker's log, beside the id of the generation.
"""

from typing import Any

INTERNAL, INTERRUPTED, CONTEXT_EXCEEDED = "internal", "interrupted", "context_exceeded"

_AGAIN = "Try again in a moment."
# By `code`: what happened, and what to do.
_SAID = {
    "server_unreachable": ("The model server could not be reached.", _AGAIN),
    "server_error": ("The model server did not react.", _AGAIN),
    "server_failed": ("The model server failed while answering.", _AGAIN),
    "server_refused": (
        "The model server refused to answer.",
        "The same message will be refused again: change it, or tell whoever runs this site.",
    ),
    CONTEXT_EXCEEDED: (
        "This message is longer than the model can read.",
        "Shorten the message, or send it in parts.",
    ),
    "stream_broken": ("The connection to the model server broke off while it was answering.", _AGAIN),
    "stream_unknown": ("The model server lost the answer that it was writing.", _AGAIN),
    INTERRUPTED: ("The model server or the worker went away several times while answering.", _AGAIN),
    INTERNAL: (
        "Something went wrong on this site while answering.",
        "Try again; if it happens again, whoever runs this site finds the cause in the worker's log.",
    ),
}
# What was said before is left out first: these are of the message, with the system prompt and the answer so far.
_COUNTED = "This message and what goes with it have {prompt_tokens:,} tokens; the model can read {n_ctx:,}."


def problem(code: str, retryable: bool, written: bool, **figures: int | None) -> dict[str, Any]:
    """The `error` of a generation. `written`: there is text of the answer; `figures` become fields of it.

    A kind of trouble without a sentence of its own gets the general one: nobody's answer may end for want of words.
    """
    happened, to_do = _SAID.get(code, _SAID["server_error"])
    if code == CONTEXT_EXCEEDED and figures and None not in figures.values():
        happened = _COUNTED.format(**figures)
    kept = "What was written is kept." if written else "Your message is kept."
    return {"code": code, "detail": f"{happened} {kept} {to_do}", "retryable": retryable, **figures}
