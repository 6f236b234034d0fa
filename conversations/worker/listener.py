"""Turns NOTIFY into wake-ups, on a connection of its own."""

import logging
import threading
from collections.abc import Callable

from django.db import connection

from chatbackend.postgresql import AWAY
from conversations.turns import WORK_CHANNEL
from conversations.worker.storage import AGAIN

logger = logging.getLogger(__name__)

LISTEN_SECONDS = 60.0


class Listener(threading.Thread):
    """Calls `hint` for every notification. Postgres away: whoever is to be woken polls anyway."""

    def __init__(self, hint: Callable[[], None]) -> None:
        super().__init__(name="listener", daemon=True)
        self._hint = hint
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except AWAY as error:
                logger.warning("notifications are out of reach, polling alone: %s", error)
                connection.close()
                self._stopped.wait(AGAIN)

    def _listen(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {WORK_CHANNEL}")
        while not self._stopped.is_set():
            with connection.wrap_database_errors:
                for _ in connection.connection.notifies(timeout=LISTEN_SECONDS):
                    self._hint()
