import logging
import os
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from chatbackend.latency import prefer_latency
from conversations.worker.process import Worker

logger = logging.getLogger(__name__)

ENDINGS = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS = 1.0
END_SECONDS = 12.0  # less than `up` waits before it kills


class Command(BaseCommand):
    # The others look at pages, forms and addresses, none of which a worker has: a second of its start.
    requires_system_checks = ["slots"]
    help = "Answer queued messages: hold leases, talk to llama-servers, store and publish text. Any number may run."

    def handle(self, *args: Any, **options: Any) -> None:
        # Waited for, not handled: a handler runs inside whatever lock the main thread holds at that moment.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        threading.excepthook = _end_process
        prefer_latency()
        worker = Worker()
        work = threading.Thread(target=worker.run, name="dispatcher")
        work.start()
        while work.is_alive() and not _asked_to_end():
            pass
        worker.stop()
        work.join(END_SECONDS)
        if work.is_alive():
            logger.critical("not ended within %s s of being asked to: its leases expire", END_SECONDS)
            os._exit(1)


def _asked_to_end() -> bool:
    """Waits for a signal. CPython answers with signal 0 when the process was paused for longer than the time-out."""
    received = signal.sigtimedwait(ENDINGS, LOOK_SECONDS)
    return received is not None and received.si_signo in ENDINGS


def _end_process(args: threading.ExceptHookArgs) -> None:
    """A worker without one of its service threads would hold leases and do nothing: better none, and others go on."""
    name = args.thread.name if args.thread else "?"
    logger.critical("thread %s failed", name, exc_info=args.exc_value)
    if not name.startswith("generation-"):
        os._exit(1)
