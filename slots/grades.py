"""What a server is good for, judged from what its probe found. Nothing is sent here and nothing stored.

- **full**: every slot its own cache, nothing kept beside the slots, parking works. All slots are leased.
- **no parking**: the same without files to park in. All slots are leased; whoever loses one is read again.
- **one at a time**: slots share or lose their caches, or a RAM cache is on (llama-server's defaults). Only slot 0 is
  leased, one request in flight on the whole server. Texts are kept apart; how fast an answer begins is not.
- **unusable**: nothing is leased, for the reason said.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from slots import advice
from slots.client import Props
from slots.models import Server

Grade = Server.Grade

WORDS = {
    Grade.FULL: "full",
    Grade.NO_PARKING: "no parking",
    Grade.ONE_AT_A_TIME: "one at a time",
    Grade.UNUSABLE: "unusable",
}
EXIT_CODES = {Grade.FULL: 0, Grade.NO_PARKING: 1, Grade.ONE_AT_A_TIME: 2, Grade.UNUSABLE: 3}

SHARED_WITHIN = timedelta(minutes=10)
SHARED_FROM = 3  # requests that were not ours, within that time

NOTHING = "Nothing: every slot is leased, and conversations can be parked."
NO_FILES = "A conversation that loses its slot is read again from its first word: there are no files to park it in."
USELESS_FILES = (
    "A conversation that loses its slot is read again from its first word: what the server says it restored from a "
    "file it does not use (so do models with a sliding window, and hybrid ones)."
)
RAM_CACHE = (
    "People are answered one after another, whatever the number of slots: its RAM cache can put one conversation's "
    "text into another's answer when two are answered at once. How soon an answer begins may tell what others said."
)
SHARED_POOL = (
    "People are answered one after another, whatever the number of slots: a slot loses its cache as soon as another "
    "one is used."
)
WHOLE_WINDOW = (
    "Start it with --swa-full if its model has a sliding window, and with its --slot-save-path on a fast disk. Then "
    "probe it again."
)
UNTOLD = (
    "People are answered one after another: this llama-server is too old to tell how much of a prompt it reused, so "
    "that nothing can be proved of its slots."
)
DISTURBED = (
    "People are answered one after another: somebody else kept sending to it while it was tried, so that nothing can "
    "be proved of its slots."
)
SHARED = (
    "Somebody else sends to it too: their requests overwrite what conversations keep warm, and take their time from "
    "answers here."
)
KEEP_OUT = "Start it with an --api-key that only this site has."


class Parking(Enum):
    WORKS = "works"
    OFF = "off"  # slot actions answer 501
    USELESS = "useless"  # it says that it restored, and reads everything again


@dataclass(frozen=True, slots=True)
class Findings:
    """What the canaries of a probe showed."""

    tells: bool = True  # its answers say how much of a prompt was reused
    ram_cache: bool = False  # A, B, A on one slot: the third A was found again
    loses: bool = False  # A on one slot, B on another: the first one's cache was gone
    parking: Parking = Parking.OFF
    answer: str = ""  # to a fixed question, where parking works: other weights of the same shape answer otherwise
    weights: str = ""  # what the server tells of their size


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grade, what it costs in a sentence, and the command line that would do better."""

    grade: Server.Grade
    costs: str
    cure: str = ""
    parks_in_ram: bool = False
    parking: Server.Parking = Server.Parking.OFF
    fingerprint: str = ""


def judge(found: Findings, props: Props) -> Verdict:
    """The grade that a server with these findings deserves."""
    saves = found.parking is not Parking.OFF
    if not found.tells:
        return Verdict(Grade.ONE_AT_A_TIME, UNTOLD, "Update llama.cpp.")
    if found.ram_cache or found.loses:
        costs = RAM_CACHE if found.ram_cache else SHARED_POOL
        costs += f" {advice.divided(props)}" if found.loses else ""
        cure = advice.command(props, shared_pool=found.loses, saves=saves)
        return Verdict(Grade.ONE_AT_A_TIME, costs, cure, parks_in_ram=found.ram_cache)
    if found.parking is Parking.USELESS:
        cure = advice.command(props, saves=True, whole_window=True)
        return Verdict(Grade.NO_PARKING, USELESS_FILES, cure, parking=Server.Parking.INEFFECTIVE)
    if found.parking is Parking.OFF:
        return Verdict(Grade.NO_PARKING, NO_FILES, advice.command(props))
    return Verdict(Grade.FULL, NOTHING, parking=Server.Parking.EFFECTIVE, fingerprint=_fingerprint(found, props))


def _fingerprint(found: Findings, props: Props) -> str:
    """Tells whether a process can go on from another's files: llama-server itself refuses other shapes only."""
    told = f"{props.model_path}\0{found.answer}"
    digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
    return f"{digest} {found.weights or '–'} {props.total_slots}×{props.n_ctx}"


def without_parking() -> Verdict:
    """For one whose files turned out to be of no use while it was used."""
    return Verdict(Grade.NO_PARKING, USELESS_FILES, WHOLE_WINDOW, parking=Server.Parking.INEFFECTIVE)


def disturbed(props: Props) -> Verdict:
    """For a server that is never left alone long enough to be tried."""
    return Verdict(Grade.ONE_AT_A_TIME, DISTURBED, f"{KEEP_OUT} Then probe it again.")


def unusable(sentence: str, cure: str) -> Verdict:
    return Verdict(Grade.UNUSABLE, sentence, cure)


def of(server: Server, now: datetime) -> Verdict | None:
    """How a server stands now, as stored; None while its process was not tried yet and nothing is known against it."""
    if server.trouble:
        return unusable(server.trouble, server.trouble_cure)
    if not server.grade:
        return None
    costs = f"{server.costs} {SHARED}" if is_shared(server, now) else server.costs
    cure = server.cure or (KEEP_OUT if is_shared(server, now) else "")
    return Verdict(Grade(server.grade), costs, cure, server.parks_in_ram)


def words(server: Server, now: datetime) -> str:
    """The grade in words; empty where there is none yet."""
    verdict = of(server, now)
    if verdict is None:
        return ""
    return WORDS[verdict.grade] + (", shared" if is_shared(server, now) and not server.trouble else "")


def is_shared(server: Server, now: datetime) -> bool:
    """Whether three requests that were not ours were noticed there within ten minutes."""
    latest = server.foreign_at[-SHARED_FROM:]
    return len(latest) == SHARED_FROM and latest[0] > now - SHARED_WITHIN
