"""Names of files that every system takes, whatever a conversation is called."""

import re
import unicodedata

LONGEST = 80  # code points, without the ending
MOST_BYTES = 180  # of UTF-8: a name may have 255 with what a browser adds

_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*%]+')
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)  # on Windows
_JOINERS = "\u200c\u200d"


def file_name(title: str, ending: str, nameless: str = "conversation") -> str:
    """`title` as the name of a file with that `ending`; nothing in it turns text about or leads to another folder."""
    seen = (c for c in unicodedata.normalize("NFC", title) if unicodedata.category(c) != "Cf" or c in _JOINERS)
    words = " ".join(_NOT_IN_A_NAME.sub(" ", "".join(seen)).split())[:LONGEST]
    words = words.encode()[:MOST_BYTES].decode(errors="ignore").strip(" .")
    if not words or _RESERVED.match(words):
        words = f"{nameless} {words}".strip()
    return f"{words}.{ending}"
