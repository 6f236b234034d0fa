"""What people read under an answer that did not come to its end."""

from collections.abc import Iterator

import pytest

from conversations import unfinished
from slots import probe, servers  # noqa: F401  with kinds of their own, which must not depend on what ran before
from slots.client import ServerError


def kinds(of: type[ServerError]) -> Iterator[type[ServerError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


CODES = {kind.code: kind.retryable for kind in kinds(ServerError)} | {"internal": True, "interrupted": True}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("written", [True, False])
def test_every_kind_of_trouble_has_its_sentences(code: str, written: bool) -> None:
    said = unfinished.problem(code, CODES[code], written)
    assert (said["code"], said["retryable"]) == (code, CODES[code])
    assert said["detail"].endswith(".")
    assert ("What was written is kept." in said["detail"]) is written
    assert ("Your message is kept." in said["detail"]) is not written
    assert ("Try again" in said["detail"]) is CODES[code]


def test_a_conversation_that_does_not_fit_is_told_with_both_numbers_if_the_server_said_them() -> None:
    counted = unfinished.problem("context_exceeded", False, False, prompt_tokens=12345, n_ctx=2048)
    assert counted == {
        "code": "context_exceeded", "retryable": False, "prompt_tokens": 12345, "n_ctx": 2048,
        "detail": "This message and what goes with it have 12,345 tokens; the model can read 2,048. "
        "Your message is kept. Shorten the message, or send it in parts.",
    }  # fmt: skip
    bare = unfinished.problem("context_exceeded", False, False, prompt_tokens=None, n_ctx=None)
    assert bare["detail"].startswith("This message is longer than the model can read.")
