"""Calls made at the same time."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def at_once(*calls: Callable[[], T]) -> list[T]:
    """What they return, in no order; each in a thread of its own, all let go together."""
    start = threading.Barrier(len(calls))
    answers: list[T] = []

    def run(call: Callable[[], T]) -> None:
        start.wait()
        answers.append(call())

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
