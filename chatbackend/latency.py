"""How Python shares its one interpreter among the threads of a process that people wait for."""

import gc
import sys

SWITCH_SECONDS = 0.0005


def prefer_latency() -> None:
    """Let a thread that was woken have the interpreter soon; call when everything is imported.

    By default it waits up to 5 ms for one that computes, at each of a dozen wake-ups between a message and its first
    token. What is there by now is left out of every garbage collection to come, for which all threads stand still.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
