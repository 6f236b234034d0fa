"""What `/slots` shows, asked for before it is known whose slot is meant: it costs as long as finding that out."""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from slots import servers
from slots.client import ServerError
from slots.models import Server
from slots.reading import SlotState

MOST_SERVERS = 2  # with more of them, which each would be asked, most would be asked in vain
FRESH_SECONDS = 0.2  # after which a look is as good as none


class Looks:
    """One at a time at each server. Callable from any thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_SERVERS, thread_name_prefix="early-look")
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[float, Future[list[SlotState]]]] = {}

    def begin(self, reachable: Iterable[Server]) -> None:
        """Somebody is about to be given a slot of one of these: look at them now, waiting for nothing."""
        awake = [server for server in reachable if not server.asleep]  # a look would wake it, maybe for nobody
        with self._lock:
            for server in awake if len(awake) <= MOST_SERVERS else ():
                if server.pk not in self._begun or self._begun[server.pk][1].done():
                    look = self._pool.submit(servers.client_of(server).slots)
                    self._begun[server.pk] = time.monotonic(), look

    def take(self, server: int) -> Sequence[SlotState]:
        """What was seen there a moment ago, once; nothing where nobody looked, or saw nothing by now."""
        with self._lock:
            at, look = self._begun.pop(server, (0.0, None))
        if look is None or time.monotonic() > at + FRESH_SECONDS:
            return ()
        try:
            return look.result(FRESH_SECONDS)
        except (ServerError, TimeoutError):
            return ()
