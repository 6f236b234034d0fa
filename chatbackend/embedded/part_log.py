"""The one log of `up`: every line of every part with the time and the part's name, on the terminal and in a file."""

import logging
import sys
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path

NAME_WIDTH = 12
LONGEST_LINE = 4000  # characters; what is longer is cut
FILE_BYTES = 5_000_000
OLD_FILES = 3

logger = logging.getLogger("chatbackend.up")


class _QuietFile(RotatingFileHandler):
    """A log file that gives up when the disk is full or gone, instead of taking `up` with it."""

    def handleError(self, record: logging.LogRecord) -> None:
        logger.removeHandler(self)
        logger.warning("the log file %s cannot be written: %s", self.baseFilename, sys.exc_info()[1], extra=UP)


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard output; once nobody reads it any more (a closed pipe or terminal) the file alone goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        logger.removeHandler(self)


UP: Mapping[str, object] = {"part": "up"}


def open_log(folder: Path) -> None:
    """Send the log to standard output and to `folder`/up.log, at most four files of 5 MB each. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    formatter = logging.Formatter(f"%(asctime)s %(part)-{NAME_WIDTH}s | %(message)s", "%H:%M:%S")
    file = _QuietFile(folder / "up.log", maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    dated = logging.Formatter(f"%(asctime)s %(part)-{NAME_WIDTH}s | %(message)s")
    terminal = _Terminal(sys.stdout)
    for handler, form in ((terminal, formatter), (file, dated)):
        handler.setFormatter(form)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def say(message: str, *values: object) -> None:
    """A line of `up` itself."""
    logger.info(message, *values, extra=UP)


def repeat(part: str, line: bytes) -> str:
    """Log one line that `part` wrote; returns it as text."""
    text = line.decode("utf-8", "backslashreplace").rstrip()[:LONGEST_LINE]
    if text:
        logger.info("%s", text, extra={"part": part})
    return text
