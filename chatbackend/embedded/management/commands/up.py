"""`manage.py up`: everything for one machine, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from contextlib import closing
from functools import partial

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from chatbackend import environment
from chatbackend.embedded import llama
from chatbackend.embedded.address import listen
from chatbackend.embedded.one_machine import OneMachine
from chatbackend.embedded.part_log import open_log
from chatbackend.embedded.parts import CannotStart, die_with_parent
from chatbackend.embedded.state import sole_use


class Command(BaseCommand):
    requires_system_checks = ["slots"]  # `migrate`, its first step, does the others
    help = "Start Postgres, Valkey, llama-server, a worker and the web server for one machine; Ctrl-C stops them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--stop-with-parent", action="store_true", help="stop when the process that started us ends"
        )

    def handle(self, *args: object, **options: object) -> None:
        if options["stop_with_parent"]:
            die_with_parent(signal.SIGTERM, os.getppid())
        try:
            self._up()
        except (CannotStart, psycopg.Error) as error:
            sys.exit(f"error: {str(error).partition(chr(10))[0]}")
        except OSError as error:
            sys.exit(f"error: {error.strerror or error}: {error.filename or settings.STATE_DIR}")

    def _up(self) -> None:
        os.umask(0o077)  # what the parts write is their owner's alone unless said otherwise
        wish = wished_llama()
        state = settings.STATE_DIR
        environment.make_state_dir(state)
        with sole_use(state), closing(listen(settings.HOST, settings.PORT)) as listener:
            open_log(state / "log")
            machine = OneMachine(
                base=settings.BASE_DIR,
                state=state,
                sockets=settings.SOCKET_DIR,
                host=settings.HOST,
                listener=listener,
                connections=3 * settings.DATABASE_POOL + 20,
                llama=wish,
                tell=partial(print, flush=True),
            )
            asyncio.run(machine.run())


def wished_llama() -> llama.Wish | None:
    """The llama-server to start, None when LLAMA_SERVERS names running ones. Raises CannotStart."""
    if settings.LLAMA_SERVERS:
        return None
    slots = environment.whole("LLAMA_SLOTS", 4, 1, 256)
    context = environment.whole("LLAMA_SLOT_CONTEXT", 2048, 256, 4_000_000)
    return llama.wish(os.environ, slots, context)
