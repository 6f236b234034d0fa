"""How much one socket may ask for."""

import time
from collections.abc import Callable

from conversations import errors

PER_SECOND, BURST = 20, 60


class Allowance:
    """PER_SECOND frames a second, and a BURST of them after a pause. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def take(self) -> None:
        """Use up one frame. Raises TooMany."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        if self._left < 1:
            raise errors.TooMany(f"Too many frames: {PER_SECOND} a second are read; this one was not. Send it again.")
        self._left -= 1
