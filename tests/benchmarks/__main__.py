"""`make bench`, or python -m tests.benchmarks [--quick] [--json FILE]: one table, and JSON beside it.

Starts the product as `make up` does, in a folder of its own, and stops it again. About a quarter of an hour; --quick, a
minute, says only that it works.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from chatbackend.embedded import paths
from tests.benchmarks import figures
from tests.processes import ROOT, open_folder, running_up

# One person of the benchmark fills every slot, and the queue. Titles would be made while the other side is measured.
LIMITS = {
    "QUEUE_RUNNING_PER_PERSON": "50", "QUEUE_WAITING_PER_PERSON": "1000", "QUEUE_LENGTH": "500", "TITLES": "off",
}  # fmt: skip
CONNECTIONS = 70  # of ours; `up` lets Postgres have three times its pool
POOL_OF_UP = "30"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute, figures of no worth")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", help="where the figures go")
    wished = parser.parse_args(arguments)
    began, before = time.monotonic(), os.getloadavg()[0]
    with open_folder() as folder, running_up(folder / "state", DATABASE_POOL=POOL_OF_UP, **LIMITS) as up:
        assert up.address
        _use_the_database_of(up.state)
        from tests.benchmarks import suite

        rows = suite.run(up, quick=wished.quick)
    loads = [round(load, 2) for load in (before, os.getloadavg()[0])]
    figures.write(wished.json, rows, loads, time.monotonic() - began)
    print(figures.table(rows))  # noqa: T201
    print(f"load {loads[0]} before, {loads[1]} after, {os.cpu_count()} cores; also in {wished.json}")  # noqa: T201
    return 0


def _use_the_database_of(state: Path) -> None:
    """Settings are read from the environment at the first import of a model."""
    import django

    sockets = paths.socket_dir(state)
    os.environ |= LIMITS | {
        "STATE_DIR": str(state), "DATABASE_URL": paths.postgres_url(sockets), "REDIS_URL": paths.valkey_url(sockets),
        "DATABASE_POOL": str(CONNECTIONS), "DJANGO_SETTINGS_MODULE": "chatbackend.settings",
    }  # fmt: skip
    django.setup()


if __name__ == "__main__":
    sys.exit(main())
