"""Turns NOTIFY into wake-ups, on a connection of its own."""

import logging
import threading
from collections.abc import Callable
from uuid import UUID

from django.db import connection

from chatbackend.postgresql import AWAY
from conversations import ahead
from conversations.turns import WORK_CHANNEL
from conversations.worker.storage import AGAIN

logger = logging.getLogger(__name__)

LISTEN_SECONDS = 60.0


class Listener(threading.Thread):
    """Calls `hint` with the payload when there is something to do, and `wish` when somebody is about to send.

    Postgres away: the first is polled for anyway, and the second may be lost.
    """

    def __init__(self, hint: Callable[[str], None], wish: Callable[[int, UUID], None]) -> None:
        super().__init__(name="listener", daemon=True)
        self._hint, self._wish = hint, wish
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
            for channel in (WORK_CHANNEL, ahead.CHANNEL):
                cursor.execute(f"LISTEN {channel}")
        while not self._stopped.is_set():
            with connection.wrap_database_errors:
                for notified in connection.connection.notifies(timeout=LISTEN_SECONDS):
                    if notified.channel != ahead.CHANNEL:
                        self._hint(notified.payload)
                    elif wish := ahead.heard(notified.payload):
                        self._wish(*wish)
