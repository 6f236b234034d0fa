"""How often conversations had to be read again, why, and what that cost."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

# Ids are UUIDv7: those from a time on are a range of the primary key.
_TOTALS = """
SELECT timings->>'replay_cause', count(*), coalesce(sum((timings->>'prompt_n')::float), 0)::bigint,
       coalesce(sum((timings->>'prompt_ms')::float), 0)
FROM conversations_generation
WHERE id >= %s AND NOT imported AND timings->>'replay_cause' IS NOT NULL GROUP BY 1 ORDER BY 3 DESC, 1"""


@dataclass(frozen=True, slots=True)
class Replays:
    """Of one cause."""

    cause: str
    count: int
    tokens: int  # model tokens of prompts that were read, what was new in them included
    milliseconds: float  # that took

    @property
    def words(self) -> str:
        return self.cause.replace("_", " ")

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000


def since(moment: datetime) -> list[Replays]:
    """Of the turns sent from then on that have ended, the most tokens first. One query."""
    first = uuid.UUID(int=int(moment.timestamp() * 1000) << 80)
    with connection.cursor() as cursor:
        cursor.execute(_TOTALS, [first])
        return [Replays(*row) for row in cursor.fetchall()]
