"""What the product costs beside what it stands in front of: `make bench`, never part of `make test`.

Every figure is taken twice in one run, in turns: through us, and straight from the same llama-server or the same
Postgres, so that a busy machine spoils both alike. Ratios and differences count, absolute figures are the machine's.
`leasing` · `first_token` · `throughput` · `refusal` measure; `figures` counts and prints; `__main__` starts everything.
"""
