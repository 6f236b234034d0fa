"""STATE_DIR: one `up` at a time, and the folders in it. No mode of a folder above STATE_DIR is ever changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chatbackend.embedded.parts import Account, CannotStart, try_lock


@contextmanager
def sole_use(state: Path) -> Iterator[None]:
    """Hold STATE_DIR for this `up`. Raises CannotStart, naming the process that has it."""
    path = state / "up.lock"
    held = try_lock(path)
    if held is None:
        pid = path.read_text().strip() or "unknown"
        raise CannotStart(
            f"another `up` (process {pid}) runs on {state}: stop it first, or give this one its own STATE_DIR"
        )
    try:
        os.ftruncate(held, 0)
        os.write(held, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(held)


def own_folder(path: Path, account: Account | None = None, mode: int = 0o700) -> Path:
    """The folder `path`, made for us or for `account`. Raises CannotStart when it is somebody else's, OSError."""
    wanted = os.geteuid() if account is None else account.uid
    if not path.exists():
        path.mkdir(mode=mode, parents=True)
        path.chmod(mode)  # whatever the umask says
    # In /tmp anybody may have made it first, or a link to elsewhere in its place.
    owner = (path.lstat() if path.parent == Path("/tmp") else path.stat()).st_uid  # noqa: S108
    if owner == os.geteuid() and account is not None:
        os.chown(path, account.uid, account.gid)
    elif owner != wanted:
        raise CannotStart(f"{path} belongs to user {owner}, not to user {wanted}: move it away")
    return path
