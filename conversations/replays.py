"""How often conversations had to be read again, why, and what that cost; and whose are so with every turn."""

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

# Most of the newest turns of a conversation; the first of all is no replay.
LAST, MOST = 5, 3
_CHANGING = """
WITH newest AS (
  SELECT conversation_id, owner_id, timings->>'replay_cause' = 'settings' AS changed,
         row_number() OVER (PARTITION BY conversation_id ORDER BY id DESC) AS number
  FROM conversations_generation WHERE id >= %(first)s AND NOT imported AND timings IS NOT NULL),
changing AS (
  SELECT owner_id FROM newest WHERE number <= %(last)s
  GROUP BY conversation_id, owner_id HAVING count(*) FILTER (WHERE changed) >= %(most)s)
SELECT p.id, p.username, count(*) FROM changing JOIN accounts_user p ON p.id = owner_id
GROUP BY 1, 2 ORDER BY 3 DESC, 2"""


@dataclass(frozen=True, slots=True)
class Changing:
    """A person whose client sends other settings, as a system prompt with the time in it, with nearly every turn."""

    person: int
    username: str
    conversations: int


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
    with connection.cursor() as cursor:
        cursor.execute(_TOTALS, [_first_id(moment)])
        return [Replays(*row) for row in cursor.fetchall()]


def changing(moment: datetime) -> list[Changing]:
    """Whose conversations were read again since then for their settings in MOST of the LAST turns. One query."""
    with connection.cursor() as cursor:
        cursor.execute(_CHANGING, {"first": _first_id(moment), "last": LAST, "most": MOST})
        return [Changing(*row) for row in cursor.fetchall()]


def _first_id(moment: datetime) -> uuid.UUID:
    return uuid.UUID(int=int(moment.timestamp() * 1000) << 80)
