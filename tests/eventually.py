"""The only wait in the tests: poll until it is so, or fail saying what was awaited."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout: float = 10.0, *, every: float = 0.02, what: str = "") -> T:
    """What `check` returns once it is truthy; AssertionError after `timeout` seconds, naming what was awaited.

    An AssertionError raised by `check` counts as "not yet", and is shown if it was never to be.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            if result := check():
                return result
            last = result
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            awaited = what or getattr(check, "__qualname__", repr(check))
            raise AssertionError(f"not within {timeout:g} s: {awaited} (last: {last!r})")
        time.sleep(every)
