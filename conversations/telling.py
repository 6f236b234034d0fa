"""Which worker tells the places, and whether there is any."""

from uuid import UUID

from django.db import connection

SECONDS = 3.0  # after which another worker tells the places: three readings
SIGN_SECONDS = 5.0  # between two signs of life while there is nobody to tell
GONE_SECONDS = 10.0  # without a sign: no worker runs

NO_WORKER = "No worker is running, so nothing is answered: what is sent waits until one is."

_LEAD = """
INSERT INTO conversations_telling AS told (id, worker, until)
VALUES (1, %(worker)s, statement_timestamp() + %(seconds)s * interval '1 s')
ON CONFLICT (id) DO UPDATE SET worker = excluded.worker, until = excluded.until
WHERE told.worker = excluded.worker OR told.until < statement_timestamp()
RETURNING 1"""

_SILENT = """
SELECT NOT EXISTS (SELECT FROM conversations_telling
  WHERE until > statement_timestamp() - %(seconds)s * interval '1 s')"""

_OVERDUE = """
AND EXISTS (SELECT FROM conversations_generation
  WHERE status = 'queued' AND queued_at < statement_timestamp() - %(seconds)s * interval '1 s')"""


def lead(worker: UUID) -> bool:
    """Whether `worker` tells the places for the next SECONDS; as long as it asks again, nobody else does."""
    with connection.cursor() as cursor:
        cursor.execute(_LEAD, {"worker": worker, "seconds": SECONDS})
        return cursor.fetchone() is not None


def no_worker() -> str | None:
    """A sentence when no worker gave a sign for GONE_SECONDS; None while one does."""
    return _when(_SILENT)


def nobody_comes() -> str | None:
    """The same, once somebody has waited for as long: the first to send on a new site is not alarmed."""
    return _when(_SILENT + _OVERDUE)


def _when(question: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(question, {"seconds": GONE_SECONDS})
        return NO_WORKER if cursor.fetchone()[0] else None
