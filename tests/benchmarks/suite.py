"""All measurements on one running site, in order."""

import os
import signal

from slots.models import Server
from tests.benchmarks import first_token, leasing, refusal, returning, throughput
from tests.benchmarks.figures import Row
from tests.benchmarks.ours import Person
from tests.benchmarks.straight import Straight
from tests.eventually import eventually
from tests.llama import real_llama_server
from tests.processes import Up

QUICK = returning.Size(conversations=6, rounds=1, words=40, preset_words=60)


def run(up: Up, *, quick: bool) -> list[Row]:
    person = Person(up.address.rstrip("/"))
    server = _ready(None)
    straight = [Straight(server.url, server.api_key, number) for number in range(server.total_slots or 0)]
    rows = _returning(up, person, server, QUICK if quick else returning.Size())
    rows += first_token.measure(person, straight[-1], pairs=15 if quick else 150)
    typing = 0.5 if quick else first_token.TYPING_SECONDS
    rows += first_token.measure(person, straight[-1], pairs=5 if quick else 100, typing=typing)
    rows += throughput.measure(person, straight, *((1, 24) if quick else (3, 256)))
    rows += refusal.measure(person, fill=500, tries=10 if quick else 60, at_once=50)
    rows += leasing.measure(seconds=0.3 if quick else 1.5, rounds=1 if quick else 4)
    return rows


def _returning(up: Up, person: Person, server: Server, size: returning.Size) -> list[Row]:
    """Before all others: who sends to a slot of ours past us is noticed, and what is in the slot counts for less."""
    context, parked = server.n_ctx or 0, up.state / "beside"
    parked.mkdir()
    with real_llama_server(slots=server.total_slots or 0, slot_context=context, slot_save_path=parked) as second:
        straight = [Straight(second.url, second.api_key or "", number) for number in range(server.total_slots or 0)]
        return [
            *returning.measure(person, straight, lambda: _restart(up, server), size),
            *returning.measure_preset(person, size.preset_words),
        ]


def _restart(up: Up, server: Server) -> None:
    """Kill the llama-server of `up`, which starts another, and wait until it is leased again."""
    os.kill(up.pid_of("embedded.llama_server"), signal.SIGKILL)
    _ready(server.boot)


def _ready(former: str | None) -> Server:
    """The one server, once a process other than `former` is ready."""
    ready = Server.objects.filter(state="ready", trouble="").exclude(boot=former or "")
    server = eventually(ready.first, 60, what="a server to be ready")
    assert server
    return server
