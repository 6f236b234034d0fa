"""Where the embedded parts keep their things under STATE_DIR."""

import hashlib
import os
import tempfile
from pathlib import Path

# sun_path holds 108 bytes with its closing NUL (unix(7)); the longest name we put in the folder is Postgres's lock.
SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"


def socket_dir(state: Path) -> Path:
    """The folder for unix sockets: `STATE_DIR/run`, or a short one named after it where that path is too long."""
    wanted = state / "run"
    if len(os.fsencode(wanted / LONGEST_SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
        return wanted
    name = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"chatbackend-{os.geteuid()}-{name}"
