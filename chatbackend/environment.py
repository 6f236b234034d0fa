"""Settings out of the environment. Every reader here ends in a value or in a sentence that names the variable."""

import ipaddress
import os
import secrets
import socket
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import environ
from django.core.exceptions import ImproperlyConfigured

from chatbackend.embedded.paths import postgres_url, valkey_url

env = environ.Env()


def whole(name: str, default: int, at_least: int = 0, at_most: int | None = None) -> int:
    """The whole number in `name`; raises ImproperlyConfigured outside `at_least`..`at_most`."""
    text = os.environ.get(name, "").strip() or str(default)
    limit = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
    try:
        number = int(text)
    except ValueError:
        number = at_least - 1
    if number < at_least or (at_most is not None and number > at_most):
        raise ImproperlyConfigured(f"{name} must be a whole number {limit}, not {text!r}.")
    return number


def seconds(name: str, default: float) -> float:
    """A time span in seconds, greater than zero."""
    text = os.environ.get(name, "").strip() or str(default)
    try:
        span = float(text)
    except ValueError:
        span = 0.0
    if not 0 < span < 1e9:
        raise ImproperlyConfigured(f"{name} must be a number of seconds greater than 0, not {text!r}.")
    return span


def choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    """One of `allowed`."""
    value = os.environ.get(name, "").strip() or default
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
    return value


def time_zone(name: str, default: str) -> str:
    """A zone of the IANA database, like Europe/Berlin."""
    zone = os.environ.get(name, "").strip() or default
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:  # OSError: a folder of the database, "Europe"
        raise ImproperlyConfigured(f"{name} must be a time zone like Europe/Berlin, not {zone!r}.") from error
    return zone


def words(name: str) -> list[str]:
    """A comma-separated list, empty entries dropped."""
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


def state_dir(base: Path) -> Path:
    """Where data, secrets and logs live: STATE_DIR, else `.state`, as root `/var/lib/chatbackend`."""
    named = os.environ.get("STATE_DIR", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    return Path("/var/lib/chatbackend") if os.geteuid() == 0 else base / ".state"


def make_state_dir(state: Path) -> None:
    """Make STATE_DIR unless it is there. Raises OSError.

    Root's must let Postgres's own account through, whatever the umask; everything in it is closed by itself.
    """
    if not state.is_dir():
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o711 if os.geteuid() == 0 else 0o700)


def secret_key(state: Path) -> str:
    """SECRET_KEY, else the one kept in STATE_DIR, made on first use and readable by its owner only."""
    if named := os.environ.get("SECRET_KEY", "").strip():
        return named
    path = state / "secret_key"
    try:
        make_state_dir(state)
        _write_once(path, secrets.token_urlsafe(50))
        key = path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"The secret key cannot be kept in {path}: {error.strerror}.") from error
    if len(key) < 32:
        raise ImproperlyConfigured(f"{path} is damaged: delete it (everyone signs in again) or set SECRET_KEY.")
    return key


def _write_once(path: Path, text: str) -> None:
    """Two processes may start at once: the link makes exactly one key the key, and never a half-written one."""
    if path.exists():
        return
    mine = path.with_name(f"{path.name}.{os.getpid()}")
    mine.touch(mode=0o600)
    try:
        mine.write_text(text)
        os.link(mine, path)
    except FileExistsError:
        pass
    finally:
        mine.unlink()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def lan_address() -> str | None:
    """This machine's address on its network, by asking the routing table (nothing is sent); None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if is_loopback(address) else address


def hosts(host: str) -> list[str]:
    """Names this site answers to: ALLOWED_HOSTS, loopback, and the LAN names when bound beyond loopback."""
    names = ["localhost", "127.0.0.1", "[::1]", *words("ALLOWED_HOSTS")]
    if is_loopback(host):
        return names
    own = socket.gethostname()
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104  asks, does not bind
    return [*names, *filter(None, (None if everywhere else host, lan_address(), own, f"{own}.local"))]


def database(sockets: Path) -> dict[str, Any]:
    """Django's settings for DATABASE_URL, else for the embedded Postgres."""
    url = os.environ.get("DATABASE_URL", "").strip() or postgres_url(sockets)
    wrong = "DATABASE_URL must be like postgres://user:password@host:5432/name."
    if not url.startswith(("postgres://", "postgresql://")):
        raise ImproperlyConfigured(wrong)
    try:
        config: dict[str, Any] = environ.Env.db_url_config(url)
    except ValueError as error:  # a port that is no number, a bracket that is not closed
        raise ImproperlyConfigured(wrong) from error
    return config


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(name: str) -> list[Network]:
    """A comma-separated list of addresses and networks like 10.0.0.0/8."""
    try:
        return [ipaddress.ip_network(word, strict=False) for word in words(name)]
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must list addresses or networks like 10.0.0.0/8: {error}.") from error


def redis_url(sockets: Path) -> str:
    """REDIS_URL, else the embedded Valkey's socket."""
    url = os.environ.get("REDIS_URL", "").strip() or valkey_url(sockets)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ImproperlyConfigured("REDIS_URL must begin with redis://, rediss:// or unix://.")
    return url
