"""chatbackend: many people, one llama-server, nobody's words in another's answer.

The map:

- `chatbackend`: settings, urls, asgi, the web server, the admin's site; nothing about chat itself.
  - `chatbackend.embedded`: Postgres, Valkey and llama-server out of Python wheels, and `manage.py up`.
  - `chatbackend.accounts`: people, sign-up and invitations.
- `slots`: llama-servers, their slots and the leases on them. Knows nothing of people or conversations.
- `conversations`: conversations, messages, turns, the queue, events, the worker, the API. Uses `slots`.

Who may do what, each held by a test: only `slots.leases` writes leases, only `slots.client` talks to a
llama-server, only `conversations.sending` begins a generation and only `conversations.turns` moves one, only
`conversations.events` touches the channel layer, and `slots` imports nothing of `conversations` or
`chatbackend.accounts`.
"""
