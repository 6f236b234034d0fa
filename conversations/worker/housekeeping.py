"""Removes what nobody asks for any more: deleted conversations, ended sessions, invitations, and leases of long ago."""

import logging
import threading
import time

from django.db import connection

from chatbackend.accounts import invites
from chatbackend.accounts.sessions import SessionStore
from chatbackend.postgresql import AWAY
from conversations import deleting
from slots import past

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0  # a promise is kept in that: what was deleted goes soon after it cannot be had back
EVERY_SECONDS = 3600.0
FIRST_SECONDS = 60.0  # a worker that has just come has better things to do


class Housekeeper(threading.Thread):
    """Removes what was deleted, and tidies once an hour. Every worker does: what another has removed costs nothing."""

    def __init__(self) -> None:
        super().__init__(name="housekeeper", daemon=True)
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        due = time.monotonic() + FIRST_SECONDS
        while not self._stopped.wait(REMOVE_SECONDS):
            try:
                if count := deleting.remove_due():
                    logger.info("removed conversations=%s that were deleted", count)
                deleting.forget_files()
                if time.monotonic() >= due:
                    due = time.monotonic() + EVERY_SECONDS
                    tidy()
            except AWAY as error:
                logger.warning("what is to be removed stays a little longer: %s", error)
            finally:
                connection.close()


def tidy() -> None:
    SessionStore.clear_expired()
    invites.forget()
    past.forget()
