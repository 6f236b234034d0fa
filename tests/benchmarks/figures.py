"""Quantiles, the table and the JSON."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure: ours, the one beside it, and how they compare. `met` None: there is no goal to meet."""

    what: str
    ours: str
    beside: str
    result: str
    goal: str = ""
    met: bool | None = None


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are no larger than."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def at_most(what: str, ours: float, beside: float, share: float) -> Row:
    """A ratio of two times that must not be larger than `share`."""
    ratio = ours / beside
    return Row(what, ms(ours), ms(beside), f"{ratio:.2f} ×", f"≤ {share:g} ×", ratio <= share)


def added(what: str, ours: float, beside: float, difference: float, most: float) -> Row:
    """Seconds more, of which there may be `most`."""
    return Row(what, ms(ours), ms(beside), f"{difference * 1000:+.1f} ms", f"≤ +{most * 1000:g} ms", difference <= most)


def table(rows: Sequence[Row]) -> str:
    heads = ("what", "ours", "beside", "result", "goal", "")
    verdict = {True: "met", False: "missed", None: ""}
    cells = [heads, *((r.what, r.ours, r.beside, r.result, r.goal, verdict[r.met]) for r in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths).rstrip(), *lines[1:]])


def write(path: Path, rows: Sequence[Row], loads: Sequence[float], seconds: float) -> None:
    """`loads`: the machine's load average before and after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"seconds": round(seconds), "load_before_and_after": loads, "cores": os.cpu_count()}
    path.write_text(json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=2, ensure_ascii=False) + "\n")
