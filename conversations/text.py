"""Text as Postgres and UTF-8 can hold it."""

LONGEST_MESSAGE = 200_000  # code points; more than the largest context that a slot is given in practice


def clean(text: str) -> str:
    """`text` without NUL, which Postgres cannot store, and with lone surrogates replaced, which UTF-8 cannot."""
    text = text.replace("\x00", "")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
