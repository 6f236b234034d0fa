"""Where the embedded parts keep their things under STATE_DIR, and the addresses that follow from it."""

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

# sun_path holds 108 bytes with its closing NUL (unix(7)); the longest name we put in the folder is Postgres's lock.
SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"


def socket_dir(state: Path) -> Path:
    """The folder for unix sockets: `STATE_DIR/run`, or one named after it where that path cannot hold them.

    It may be too long; and libpq takes a comma for the end of one host and the beginning of the next.
    """
    wanted = state / "run"
    if len(os.fsencode(wanted / LONGEST_SOCKET_NAME)) <= SOCKET_PATH_LIMIT and "," not in str(wanted):
        return wanted
    name = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    # Not TMPDIR: it may be long itself, and may differ between `up` and a `manage.py` in another terminal.
    return Path("/tmp") / f"chatbackend-{os.geteuid()}-{name}"  # noqa: S108


def postgres_url(sockets: Path) -> str:
    """The DATABASE_URL of the embedded Postgres. The port is said because PGPORT would change it otherwise."""
    return f"postgres://chat@:5432/chat?host={quote(str(sockets))}"


def valkey_url(sockets: Path) -> str:
    """The REDIS_URL of the embedded Valkey."""
    return f"unix://{quote(str(sockets / 'valkey.sock'))}"
