"""Leases on the slots of llama-servers.

What is promised, each with a test in `tests/test_leases.py` or `tests/test_turns_on_slots.py`:

1. At most one holder per slot and one slot per holder: constraints in Postgres, not code alone.
2. Every write on behalf of a lease locks the slot row and checks its fence; a stale holder's write changes nothing
   and raises `LeaseLost`. Each request to a llama-server carries a random stream id, committed on the slot row before
   it is sent and never reused; only the holder of that row, or anyone for an id no row carries, may stop it.
3. At most one request in flight per slot; a slot is handed on only when the server's `/slots` says it is quiet.
4. Every request names its slot, an integer checked against the server's number of slots.
5. A slot that changes hands gets `cache_prompt: false` with its first request, unless a file was restored over what was
   there; except on a server that is used one at a time because it keeps caches in its RAM, where what it finds again is
   found by its tokens alone.
6. What a cache holds is known: the grant says how many tokens of its holder's own and of which request, to be compared
   before the next one and with what the server says that it reused. More than that takes the server out of service
   (`slots.isolation`, `tests/test_verified_turns.py`).
7. A lease survives between turns and is renewed while busy. A dead worker costs its conversations one time to live.
8. A cache is parked in a file when its slot goes to somebody else, and restored to its holder alone (`slots.parking`);
   that of a preset's prompt, which has nobody's words in it, to whoever the caller says. A file counts when its server
   saved as many tokens as the slot had been seen to hold, under a fence still held; it is trusted as far as the next
   request finds it again; it is overwritten when its holder is no more, and until then that is a row. A
   worker that dies at any point leaves nothing wrong (`tests/test_parking.py`, `tests/test_parking_ahead.py`).
9. A server is leased at the grade that its process was found to deserve, and not before: in full, without parking, or
   one at a time where slots share or lose caches (`slots.grades`, `tests/test_probe.py`, `tests/test_grades.py`).
10. Other work than turns (titles, prewarms, parks, wipes) takes nothing from anybody, but for a wipe that waited long,
    and a turn takes its slot at once: the turn's worker stops that request and sends when the slot is quiet
    (`tests/test_preemption.py`).

What is not: `expires_at` in the past does not end a lease, it makes it takeable; only a changed fence ends it. And the
fence holds for Postgres; a llama-server checks none, so requests sent late by a stalled process are made harmless by
their retired stream id, not prevented.

A holder is a UUID and nothing more: this package knows neither people nor conversations.
"""
