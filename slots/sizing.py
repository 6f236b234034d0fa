"""How many slots of which context somebody needs, and the memory they take.

A slot's KV cache is reserved as a whole when llama-server starts: slots × context × bytes per model token. On top come
the model itself and llama-server's working memory, some hundred MB that are not in these figures.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slots import advice, gguf
from slots.client import LlamaServer, Props, ServerError
from slots.demand import Demand

WIDTH = 100
UNITS = {unit: 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
SMALLEST, LARGEST = 256, 16 * 1024 * 1024  # model tokens of a slot
MOST_PEOPLE, FASTEST = 100_000, 100_000
CANARIES = 64  # model tokens at most that a slot holds after a probe
SAVED_BESIDES = 16  # bytes that a file of a slot has for each model token beside its keys and values (b11434)
COMPACT = ("-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0")
HEADINGS = ("choice", "slots", "context", "total -c", "KV f16", "KV q8_0", "f16 and model", "wait", "fits")
NO_MODEL = "Which model? Name its file, --model FILE, or an idle server of grade full."


class Nonsense(ValueError):
    """What was asked for cannot be meant; the sentence says what would be."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What one model token takes in a KV cache, and how that is known."""

    f16: float  # bytes
    q8_0: float
    source: str  # where the figures are from
    model_path: str = ""
    model_bytes: int | None = None
    trained: int | None = None  # model tokens: a slot cannot have more
    window: int | None = None
    recurrent: bool = False

    @property
    def saved(self) -> float:
        """Bytes of a parked conversation for each of its model tokens, at most."""
        return self.f16 + SAVED_BESIDES


@dataclass(frozen=True, slots=True)
class Choice:
    """So many slots of so many model tokens each, as llama-server rounds them."""

    name: str
    slots: int
    context: int

    @property
    def total(self) -> int:
        return self.slots * self.context


def size(said: str) -> int:
    """Bytes of `16G`, `16GiB`, `512M`. Raises Nonsense."""
    found = _SIZE.fullmatch(said.strip())
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if not size:
        raise Nonsense(f"{said!r} is no size of a memory: say 16G, 16GiB or 512M.")
    return size


def whole(name: str, said: str, most: int) -> int:
    """The number after a flag. Raises Nonsense."""
    if not re.fullmatch(r"\d{1,9}", said) or not 1 <= int(said) <= most:
        raise Nonsense(f"{name} {said}: say a whole number from 1 to {most:,}.")
    return int(said)


def from_file(path: str) -> Cache:
    """From a model's own header. Raises Nonsense."""
    try:
        model = gguf.read(Path(path))
    except gguf.NotReadable as error:
        raise Nonsense(str(error)) from error
    source = f"the header of {path} ({model.architecture}, {model.layers} layers)"
    return Cache(
        model.bytes_per_token("f16"), model.bytes_per_token("q8_0"), source, path, model.file_bytes,
        model.context, model.window, model.recurrent,
    )  # fmt: skip


def local_model(url: str, props: Props) -> str | None:
    """The model file of a server on this machine, if it can be seen from here."""
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return props.model_path if local and props.model_path and Path(props.model_path).is_file() else None


def from_slots(client: LlamaServer, slots: Sequence[int], filename: str) -> Cache:
    """From files that an idle server of grade full writes of `slots`, which hold what a probe sent and nothing else.

    Raises ServerError. What every file has once goes out where two slots hold different numbers of model tokens.
    """
    ours = [one.id for one in client.slots() if one.id in slots and not one.busy and 0 < (one.tokens or 0) <= CANARIES]
    written = dict(client.saved(slot, filename) for slot in ours)
    if not written:
        raise ServerError("Its slots were used by somebody else before they could be measured.")
    (few, less), (many, more) = min(written.items()), max(written.items())
    each = (more - less) / (many - few) if many > few else more / many
    kept = each - SAVED_BESIDES
    props = client.props()
    source = f"a slot that {client.url} saved, taken for f16 as llama-server keeps it unless told otherwise"
    return Cache(kept, kept * gguf.ELEMENT["q8_0"] / gguf.ELEMENT["f16"], source, props.model_path)


def choices(places: int, context: int) -> list[Choice]:
    """Three: what is expected to be needed, less and more."""
    each = advice.padded(context, 1)
    expected = Choice("as needed", places, each)
    if places == 1:
        return [
            Choice("half the context", 1, advice.padded(-(-context // 2), 1)),
            expected,
            Choice("more slots", 2, each),
        ]
    fewer = Choice("fewer slots", places - places // 2, each)
    return [fewer, expected, Choice("more slots", places + -(-places // 2), each)]


def text(demand: Demand, context: int, cache: Cache, memory: int | None) -> str:
    """The three choices, what they were derived from, and the command line of each that fits."""
    options = choices(demand.places, context)
    rows = [HEADINGS, *(_cells(one, demand, cache, memory) for one in options)]
    columns = range(len(HEADINGS) if memory else len(HEADINGS) - 1)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    table = ["  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in rows]
    return "\n".join([*_reasons(demand, context, cache), "", *table, *_lines(options, cache, memory)])


def _reasons(demand: Demand, context: int, cache: Cache) -> Iterator[str]:
    yield from _wrapped(f"{demand.places} slots, because {demand.places_why} {demand.seconds_why}")
    yield from _wrapped(
        "The wait is that of a turn at a busy moment, on average, if every answer is written as fast as now."
    )
    yield from _wrapped(
        f"One model token takes {cache.f16:,.0f} bytes of KV cache in f16, {cache.q8_0:,.0f} in q8_0, says "
        f"{cache.source}. A parked conversation of {context:,} takes {_bytes(cache.saved * context)} on disk."
    )
    if cache.trained and advice.padded(context, 1) > advice.padded(cache.trained, 1):
        yield from _wrapped(
            f"The model was trained for {cache.trained:,} model tokens: llama-server gives a slot no more than that."
        )
    if cache.window:
        yield from _wrapped(
            f"Some of its layers look back {cache.window:,} model tokens only. The figures are those with --swa-full, "
            "where all keep everything: parked conversations go on only then. Without it they take less."
        )
    if cache.model_bytes is None:
        yield from _wrapped("The model itself is not counted: its file is not here.")
    if cache.recurrent:
        yield from _wrapped("Some of its layers keep a state of fixed size for each slot, which is not in the figures.")
    yield from _wrapped("llama-server's working memory is not in the figures either: some hundred MB.")


def _lines(options: Sequence[Choice], cache: Cache, memory: int | None) -> Iterator[str]:
    for one in options:
        kind = _fits(one, cache, memory)
        yield ""
        if kind is None:
            yield from _wrapped(f"{one.name}: {_too_much(one, cache, memory or 0)}")
        else:
            yield f"{one.name}:"
            yield f"    {_command(one, cache, compact=kind == 'q8_0')}"


def _command(one: Choice, cache: Cache, *, compact: bool) -> str:
    props = Props("", "", one.slots, one.context, cache.model_path)
    flags = f" {shlex.join(COMPACT)}" if compact else ""
    return advice.command(props, whole_window=cache.window is not None) + flags


def _fits(one: Choice, cache: Cache, memory: int | None) -> str | None:
    """The KV type with which it fits: f16 if it does, None if none does."""
    for kind, each in (("f16", cache.f16), ("q8_0", cache.q8_0)):
        if memory is None or one.total * each + (cache.model_bytes or 0) <= memory:
            return kind
    return None


def _too_much(one: Choice, cache: Cache, memory: int) -> str:
    beyond = one.total * cache.q8_0 + (cache.model_bytes or 0) - memory
    room = int((memory - (cache.model_bytes or 0)) / (one.slots * cache.q8_0)) // 256 * 256
    what = f"{one.slots} slots of {room:,} would" if room >= SMALLEST else "the model leaves no room for so many slots"
    return f"does not fit {_bytes(memory)}, with q8_0 neither: {_bytes(beyond)} too much; {what}."


def _cells(one: Choice, demand: Demand, cache: Cache, memory: int | None) -> tuple[str, ...]:
    f16, q8_0 = one.total * cache.f16, one.total * cache.q8_0
    both = "not known" if cache.model_bytes is None else _bytes(f16 + cache.model_bytes)
    fits = {"f16": "yes", "q8_0": "with q8_0", None: "no"}[_fits(one, cache, memory)]
    figures = str(one.slots), f"{one.context:,}", f"{one.total:,}", _bytes(f16), _bytes(q8_0), both
    return one.name, *figures, _wait(demand.wait(one.slots)), fits


def _wait(seconds: float) -> str:
    if seconds < 1:
        return "under 1 s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _bytes(count: float) -> str:
    power = 1 if count < 1000 * 1024 else 2 if count < 1000 * 1024**2 else 3
    figure = count / 1024**power
    return f"{figure:,.{1 if figure < 10 else 0}f} {'KMG'[power - 1]}iB"


def _wrapped(sentences: str) -> list[str]:
    return textwrap.wrap(sentences, WIDTH, break_on_hyphens=False, break_long_words=False)
