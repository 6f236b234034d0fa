"""How many people are answered at once, and how long whoever comes then waits.

Measured from the leases that ended, where there is a week of them; else assumed, and said so.

The wait: of `people`, each is answered for `seconds` and then reads and writes until the next turn, such that a share
of them is being answered at a busy moment if nobody waits; `places` are answered at once, the others wait in turn
(the machine repair model, M/M/c//N). Each answer is taken to be written as fast as ever, however many are; a server
with more places is slower in each.
"""

import math
from dataclasses import dataclass

from django.db import DatabaseError, connection

ENOUGH_DAYS, WINDOW_DAYS = 7, 28
ENOUGH_TURNS = 100
ONE_IN = 5  # people: one is taken to be answered at a busy moment
ANSWER_TOKENS = 400  # model tokens of an answer, prompt included in proportion
SPEED = 20.0  # model tokens per second
LEAST_SHARE, MOST_SHARE = 1e-6, 0.9

# At once: of 100 turns that began, 95 found so many running or fewer, themselves included. Busy: of the hours in which
# anybody was answered, in 95 of 100 so many were on average, or fewer.
_HISTORY = """
WITH turns AS (
  SELECT began_at, ended_at FROM slots_pastlease
  WHERE phase = 'busy' AND work = 'turn' AND began_at > statement_timestamp() - %(window)s * interval '1 day'),
edges AS (SELECT began_at AS at, 1 AS step FROM turns UNION ALL SELECT ended_at, -1 FROM turns),
running AS (SELECT step, sum(step) OVER (ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS count FROM edges),
hours AS (
  SELECT sum(date_part('epoch', ended_at - began_at)) / 3600 AS busy FROM turns GROUP BY date_trunc('hour', began_at))
SELECT (SELECT count(*) FROM turns),
       (SELECT date_part('epoch', statement_timestamp() - min(began_at)) / 86400 FROM turns),
       (SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY count) FROM running WHERE step = 1),
       (SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY busy) FROM hours),
       (SELECT avg(date_part('epoch', ended_at - began_at)) FROM turns),
       (SELECT count(*) FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
        WHERE v.state = 'ready' AND s.condition IN ('ready', 'stopping'))"""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the places at a busy time."""

    people: int
    places: int  # that are needed
    share: float  # of the people who are being answered at a busy moment if nobody waits
    seconds: float  # that one answer takes
    places_why: str  # a sentence, as is the next
    seconds_why: str

    def wait(self, places: int) -> float:
        """Seconds until a turn begins, on average at a busy time."""
        again = self.share / (1 - self.share) / self.seconds  # turns per second of somebody who is not answered
        # Logarithms: with thousands of people the terms leave the range of a float.
        terms = [0.0]
        for busy in range(self.people):
            rate = (self.people - busy) * again * self.seconds / min(busy + 1, places)
            terms.append(terms[-1] + math.log(rate))
        largest = max(terms)
        likely = [math.exp(term - largest) for term in terms]
        waiting = sum(chance * max(busy - places, 0) for busy, chance in enumerate(likely))
        coming = sum(chance * (self.people - busy) * again for busy, chance in enumerate(likely))
        return waiting / coming


def expected(people: int, speed: float | None) -> Demand:
    """For so many people; `speed` in model tokens per second, where it is known better than it is measured."""
    history = _history()
    if isinstance(history, str):
        seconds, seconds_why = _assumed_seconds(speed)
        places = -(-people // ONE_IN)
        why = f"1 in {ONE_IN} of {people:,} people is taken to be answered at a busy moment, an assumption: {history}"
        return Demand(people, places, 1 / ONE_IN, seconds, why, seconds_why)
    turns, at_once, busy, seconds, there_are = history
    seconds_why = f"One takes {_seconds(seconds)}, as measured on {turns:,}."
    if speed:
        seconds, seconds_why = _assumed_seconds(speed)
    why = (
        f"of 100 answers here 95 began while at most {at_once} were written, themselves included ({turns:,} answers of "
        f"the last {WINDOW_DAYS} days)."
    )
    if there_are and at_once >= there_are:
        why += f" All {there_are} places there are were taken then: with more of them it would be more."
    return Demand(people, at_once, min(max(busy / people, LEAST_SHARE), MOST_SHARE), seconds, why, seconds_why)


def _history() -> tuple[int, int, float, float, int] | str:
    """Turns, at once, busy, seconds of one, places there are; or a sentence why not."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_HISTORY, {"window": WINDOW_DAYS})
            turns, days, at_once, busy, seconds, there_are = cursor.fetchone()
    except DatabaseError:
        return "no database of this site answers."
    if turns < ENOUGH_TURNS or days < ENOUGH_DAYS:
        return f"here are {turns:,} answers of {days or 0:.0f} days, too few to learn from."
    return turns, int(at_once), float(busy), max(float(seconds), 0.1), there_are


def _assumed_seconds(speed: float | None) -> tuple[float, str]:
    said = "the given" if speed else "an assumed (--speed says better)"
    per_second = speed or SPEED
    seconds = ANSWER_TOKENS / per_second
    return seconds, (
        f"One takes {_seconds(seconds)}: an assumed {ANSWER_TOKENS} model tokens at {said} {per_second:g} per second."
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
