"""What is known of an answer that ended without its worker's figures: in the queue, or with nobody left to tell."""

import uuid
from typing import Any

from django.db import connection

_KNOWN = """
SELECT round(extract(epoch FROM coalesce(started_at, statement_timestamp()) - queued_at) * 1000)::integer,
       (SELECT coalesce(sum(tokens), 0)::integer FROM conversations_chunk WHERE generation_id = g.id)
FROM conversations_generation g WHERE g.id = %s"""

UNKNOWN = ("ttft_ms", "prompt_n", "prompt_ms", "cache_n", "tokens_per_second", "thinking_ms", "replay_cause")


def figures(generation: uuid.UUID) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its usage and timings, with the fields that every answer's have; to be asked for before its chunks are folded."""
    with connection.cursor() as cursor:
        cursor.execute(_KNOWN, [generation])
        queue_ms, tokens = cursor.fetchone() or (None, 0)
    usage = {"prompt_tokens": None, "completion_tokens": tokens}
    return usage, {"queue_ms": queue_ms, **dict.fromkeys(UNKNOWN)}
