"""What may still be spent on one text."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Seconds of a processor, in the thread that renders."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def is_spent(self) -> bool:
        return self._left <= 0

    @contextmanager
    def spending(self) -> Iterator[float]:
        """What is done inside counts; the value of `time.thread_time()` at which there is nothing left."""
        began = time.thread_time()
        try:
            yield began + self._left
        finally:
            self._left -= time.thread_time() - began
