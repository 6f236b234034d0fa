"""All measurements on one running site, in order."""

from slots.models import Server
from tests.benchmarks import first_token, leasing, refusal, throughput
from tests.benchmarks.figures import Row
from tests.benchmarks.ours import Person
from tests.benchmarks.straight import Straight
from tests.eventually import eventually


def run(address: str, *, quick: bool) -> list[Row]:
    person = Person(address)
    server = eventually(lambda: Server.objects.filter(state="ready").first(), 60, what="a server to be ready")
    assert server
    straight = [Straight(server.url, server.api_key, number) for number in range(server.total_slots or 0)]
    rows = first_token.measure(person, straight[-1], pairs=15 if quick else 150)
    rows += throughput.measure(person, straight, *((1, 24) if quick else (5, 96)))
    rows += refusal.measure(person, fill=500, tries=10 if quick else 60, at_once=50)
    rows += leasing.measure(seconds=0.3 if quick else 1.5, rounds=1 if quick else 4)
    return rows
