"""The worker: takes queued generations, holds their leases, talks to llama-servers, stores text, publishes events.

Threads of one process, and what each may wait for:

- dispatcher (main): claims, takes over, rescues; waits for NOTIFY or half a second, never for a server.
- one per running generation: waits for its llama-server.
- writer: one statement for the new text of all generations, back to back; waits for Postgres alone.
- renewal: the heartbeat of all leases, on its own connection.
- gaps: finds what is to be done between turns, each title and prewarm in a thread of its own.
- watch: looks at servers, reaps, confirms stops.
- housekeeper: removes deleted conversations soon after they cannot be had back, and once an hour what is old.
- early looks: ask at `/slots` what a server shows, as soon as something is queued, while the dispatcher claims it.
- listener: turns NOTIFY into wake-ups. publisher: sends events; drops them while the channel layer is away.

Any number of workers may run; any may die or be paused at any moment. Nothing is shown that is not committed. When
Postgres is away text is kept in memory (a context's worth at most), nothing new is sent, nothing published; leases that
expire meanwhile are gone on with, unless somebody else took them over.
"""
