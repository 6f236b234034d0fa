"""Chunks become the text of their message, in the transaction that ends their generation.

A message that is gone on with has text already: what was made of that (`conversations.rendered`) is valid no more.
"""

import uuid

from django.db import connection

_LAST = "SELECT coalesce(max(seq), 0) + 1 FROM conversations_chunk WHERE generation_id = %s"

_FOLD = """
WITH folded AS (DELETE FROM conversations_chunk WHERE generation_id = %(generation)s RETURNING part, seq, text)
UPDATE conversations_message m
SET text = m.text || coalesce((SELECT string_agg(text, '' ORDER BY seq) FROM folded WHERE part = 0), ''),
    reasoning = m.reasoning || coalesce((SELECT string_agg(text, '' ORDER BY seq) FROM folded WHERE part = 1), ''),
    html_version = 0
FROM conversations_generation g WHERE g.id = %(generation)s AND m.id = g.message_id"""


def last_seq(generation: uuid.UUID) -> int:
    """Its end is an event too, so that a client that missed only that can tell. Nobody else adds chunks meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(_LAST, [generation])
        return int(cursor.fetchone()[0])


def fold(generation: uuid.UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_FOLD, {"generation": generation})
