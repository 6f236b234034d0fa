"""A server as `check_servers` shows it: looked at now, without a database, or as the workers stored it."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from slots import advice, disk, grades, probe, servers, strangers
from slots.client import LlamaServer, Props, ServerError, SlotState
from slots.grades import EXIT_CODES, Verdict
from slots.models import Server
from slots.probe import Canaries, Disturbed
from slots.servers import Address

NOT_TRIED = 4  # exit code: the grade is not known
WIDTH = 100
FILENAME = "chatbackend-check"  # one for ever: llama-server cannot delete files
ONLY_LOOKED = "It was not tried, only looked at."
HEADINGS = ("address", "answers", "model", "slots × context", "grade")


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of one server; `verdict` None while its grade is not known, for the reason in `why`."""

    url: str
    answers: str  # who does
    model: str = ""
    slots: int | None = None
    n_ctx: int | None = None
    verdict: Verdict | None = None
    grade: str = ""  # in words
    why: str = ""
    files: str = ""  # parked there, in words

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict.grade] if self.verdict else NOT_TRIED


def inspect(address: Address, tell: Callable[[str], None], *, trying: bool) -> Report:
    """Look at a server and, if `trying` and it is idle, probe it; `tell` hears beforehand what is sent."""
    client = LlamaServer(address.url, address.api_key)
    try:
        props = client.props()
        states = servers.check(client, props)
    except ServerError as error:
        return _report(address, strangers.name_of(client, error), grades.unusable(*strangers.explained(client, error)))
    if not trying:
        return _looked_at(address, props, ONLY_LOOKED)
    try:
        return _tried(address, client, props, states, tell)
    except Disturbed as error:
        return _looked_at(address, props, f"It was not tried, because it is in use: {error}")
    except ServerError as error:
        return _report(address, "llama-server", probe.rejection(error), props)


def stored(server: Server, now: datetime) -> Report:
    """A registered server as workers found it."""
    verdict = grades.of(server, now)
    return Report(
        url=server.url,
        answers="llama-server" if server.boot else "–",
        model=server.model,
        slots=server.total_slots,
        n_ctx=server.n_ctx,
        verdict=verdict,
        grade=grades.words(server, now),
        why="" if verdict else server.costs or "No worker has tried it yet.",
        files=disk.sentences(server) if verdict and server.parking != Server.Parking.OFF else "",
    )


def text(reports: Sequence[Report]) -> str:
    """A table, and under each line what the grade costs and the command line that would do better."""
    rows = [_cells(report) for report in reports]
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(len(HEADINGS))]
    lines = [_row(HEADINGS, widths)]
    for report, row in zip(reports, rows, strict=True):
        lines += [_row(row, widths), *_explained(report)]
    return "\n".join(lines)


def _tried(
    address: Address, client: LlamaServer, props: Props, states: Sequence[SlotState], tell: Callable[[str], None]
) -> Report:
    plan = probe.plan(states)
    tell(_announcement(address, plan))
    found = Canaries(client, plan, lambda: None, FILENAME).run()
    return _report(address, "llama-server", grades.judge(found, props), props)


def _announcement(address: Address, plan: probe.Plan) -> str:
    second = "" if plan.second is None else f" and {plan.second}"
    slots = f"slot{'s' if second else ''} {plan.first}{second}"
    before = "which nobody used yet" if plan.fresh else "where whatever was kept warm is lost"
    return (
        f"{address.url}: sending about 60 model tokens of mostly random words to {slots}, {before}. With a "
        f"--slot-save-path it writes one small file there, {FILENAME}. --no-probe only looks."
    )


def _looked_at(address: Address, props: Props, why: str) -> Report:
    return Report(address.url, "llama-server", props.model, props.total_slots, props.n_ctx, why=why)


def _report(address: Address, answers: str, verdict: Verdict, props: Props | None = None) -> Report:
    model, slots, n_ctx = (props.model, props.total_slots, props.n_ctx) if props else ("", None, None)
    return Report(address.url, answers, model, slots, n_ctx, verdict, grades.WORDS[verdict.grade])


def _cells(report: Report) -> tuple[str, ...]:
    size = f"{report.slots} × {report.n_ctx:,}" if report.slots and report.n_ctx else "–"
    return report.url, report.answers, report.model or "–", size, report.grade or "not known"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _explained(report: Report) -> list[str]:
    verdict = report.verdict
    if verdict is None:
        return _wrapped(report.why)
    lines = [*_wrapped(verdict.costs), *_wrapped(report.files)]
    if advice.is_command(verdict.cure):
        return [*lines, *_wrapped(advice.introduction(verdict.cure)), f"    {verdict.cure}"]
    return [*lines, *_wrapped(verdict.cure)]


def _wrapped(sentences: str) -> list[str]:
    return textwrap.wrap(sentences, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
