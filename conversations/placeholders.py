"""`{date}`, `{time}` and `{datetime}` in a system prompt: of the moment at which its conversation began.

So every turn sends the same bytes, and what a slot's cache holds is found again. What is stored and shown keeps the
placeholders; they are replaced where the prompt is made. All other braces are sent as they are.
"""

import re
from datetime import datetime

from django.utils import timezone

OURS = ("date", "time", "datetime")
# Not in double braces: those are other products' and would be left around the date.
_OURS = re.compile(rf"(?<!{{){{({'|'.join(OURS)})}}(?!}})")
_BRACED = re.compile(r"\{{1,2}\s*([A-Za-z_$][\w.$-]{0,60})\s*(?:\(\s*\))?\s*\}{1,2}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# In the names that other products replace with every message (Open WebUI, LibreChat, SillyTavern, Jinja templates).
_VOLATILE = {
    "date", "time", "datetime", "now", "utcnow", "today", "weekday", "timestamp", "isodate", "isotime", "random",
}  # fmt: skip
MOST_NAMED = 3

TIMED = (
    "{time} and {datetime} differ in each new conversation, so none can begin with what a model read for another: "
    "{date} alone is the same for a day."
)


def expanded(system_prompt: str, began: datetime) -> str:
    """`system_prompt` as a model is sent it in a conversation that `began` then, in the site's TIME_ZONE."""
    if "{" not in system_prompt:
        return system_prompt
    at = timezone.localtime(began, timezone.get_default_timezone())
    date, time = f"{at:%A}, {at.day} {at:%B %Y}", f"{at:%H:%M %Z}"
    words = {"date": date, "time": time, "datetime": f"{date}, {time}"}
    return _OURS.sub(lambda found: words[found[1]], system_prompt)


def warnings(system_prompt: str) -> list[str]:
    """Sentences for whoever saves it to begin conversations with: what is not replaced, and what keeps them cold."""
    said = []
    if foreign := _foreign(system_prompt):
        names = ", ".join(foreign[:MOST_NAMED])
        verb = "is" if len(foreign) == 1 else "are"
        said.append(f"{names} {verb} sent as written: only {{date}}, {{time}} and {{datetime}} are replaced here.")
    if timed(system_prompt):
        said.append(TIMED)
    return said


def timed(system_prompt: str) -> bool:
    """Whether it differs in each conversation."""
    return any(name != "date" for name in _OURS.findall(system_prompt))


def _foreign(system_prompt: str) -> list[str]:
    """As they are written, each once."""
    braced = [found for found in _BRACED.finditer(system_prompt) if not _OURS.fullmatch(found[0])]
    found = [one[0] for one in braced if {word.lower() for word in _WORD.findall(one[1])} & _VOLATILE]
    return list(dict.fromkeys(found))
