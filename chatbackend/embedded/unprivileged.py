"""Postgres refuses to run as root: which account it gets instead, and where that account can reach its data."""

import os
import pwd
import secrets
import subprocess
from pathlib import Path

from chatbackend.embedded.parts import Account, CannotStart
from chatbackend.embedded.state import own_folder

CANDIDATES = ("postgres", "nobody")
# For a STATE_DIR that the account cannot enter, as one under /root: the data lives here, and STATE_DIR links to it.
REACHABLE = Path("/var/lib/chatbackend-postgres")


def account_for(data: Path) -> Account | None:
    """None for an ordinary user; for root the owner of the existing data, else `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return None
    owner = data.stat().st_uid if data.exists() else 0
    for candidate in (owner, *CANDIDATES):
        found = _look_up(candidate)
        if found is not None and found.pw_uid != 0:
            return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise CannotStart("Postgres cannot run as root, and there is no user `postgres` or `nobody` to run it as")


def _look_up(candidate: str | int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(candidate) if isinstance(candidate, int) else pwd.getpwnam(candidate)
    except KeyError:
        return None


def home(state: Path, account: Account | None) -> Path:
    """Postgres's folder: STATE_DIR/postgres, or what that links to. Raises CannotStart, OSError."""
    wanted = state / "postgres"
    if account is None or can_enter(state, account):
        return own_folder(wanted, account).resolve()
    if not wanted.is_symlink():
        if wanted.exists():
            raise CannotStart(
                f"user {account.name}, who runs Postgres, cannot enter {state}: move it where every user can"
            )
        own_folder(REACHABLE, mode=0o711)
        wanted.symlink_to(own_folder(REACHABLE / secrets.token_hex(8), account))
    return wanted.resolve(strict=True)


def socket_folder(sockets: Path, state: Path, postgres_home: Path, account: Account | None) -> Path:
    """The folder of the unix sockets, as Postgres's account reaches it. Raises CannotStart, OSError."""
    if sockets.parent == state and account is not None and not can_enter(state, account):
        real = own_folder(postgres_home / "run", account)
        if not sockets.is_symlink():
            sockets.symlink_to(real)
        return real
    return own_folder(sockets, account)


def can_enter(folder: Path, account: Account) -> bool:
    """Whether `account` can enter `folder`, tried by doing it."""
    tried = subprocess.run(
        ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)],
        user=account.uid, group=account.gid, extra_groups=[], cwd="/", capture_output=True, check=False,
    )  # fmt: skip
    return tried.returncode == 0
