"""Removes what nobody asks for any more: ended sessions, invitations, and leases of long ago."""

import logging
import threading

from django.db import connection

from chatbackend.accounts import invites
from chatbackend.accounts.sessions import SessionStore
from chatbackend.postgresql import AWAY
from slots import past

logger = logging.getLogger(__name__)

EVERY_SECONDS = 3600.0
FIRST_SECONDS = 60.0  # a worker that has just come has better things to do


class Housekeeper(threading.Thread):
    """Tidies once an hour. Every worker does: what another has removed costs nothing."""

    def __init__(self) -> None:
        super().__init__(name="housekeeper", daemon=True)
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        pause = FIRST_SECONDS
        while not self._stopped.wait(pause):
            pause = EVERY_SECONDS
            try:
                tidy()
            except AWAY as error:
                logger.warning("what is to be removed stays for another hour: %s", error)
            finally:
                connection.close()


def tidy() -> None:
    SessionStore.clear_expired()
    invites.forget()
    past.forget()
