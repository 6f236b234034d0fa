"""Conversations: what people wrote, what was answered, and how it reaches them.

What is promised:

- What a person sends is stored before it is acknowledged, exactly once per `client_id`.
- Nothing of an answer is shown before it is committed, and nothing shown is ever taken back: `seq` counts a
  generation's committed events without holes, across crashes, take-overs and servers that come back.
- Whoever missed an event, for whatever reason, gets a snapshot; a lost last event is found by asking.
- One live generation per conversation, and nobody reaches another person's conversation by any way.

What is not: an event is delivered at most once and may be lost; queue places and prefill progress are hints.
"""
