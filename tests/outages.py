"""Valkey and Postgres, away for as long as a block lasts."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from tests import services

valkey_outages = 0  # so far: whoever shares a web process between tests lets it hear again first


@contextmanager
def no_valkey() -> Iterator[None]:
    global valkey_outages
    valkey_outages += 1
    services.CACHE.kill()
    try:
        yield
    finally:
        services.CACHE.start()


@contextmanager
def hanging_valkey() -> Iterator[None]:
    global valkey_outages
    valkey_outages += 1
    services.CACHE.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        services.CACHE.process.send_signal(signal.SIGCONT)


@contextmanager
def no_postgres() -> Iterator[None]:
    connections.close_all()
    services.DATABASE.kill()
    try:
        yield
    finally:
        services.DATABASE.start()
