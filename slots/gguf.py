"""What a GGUF file's header tells of a model's KV cache. The tensors are not looked at.

Layout (llama.cpp's ggml/docs, versions 2 and 3, little-endian): magic, version, number of tensors, number of
key-value pairs, then the pairs: key, type, value. A string is its length and its bytes, an array the type of its
elements, their number and they. Whatever is too long, too many or too deep to be a model's is refused, and at most
HEADER_BYTES are walked through: a vocabulary of 260,000 words is some 10 MB.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 256 * 1024 * 1024
MOST_PAIRS = 65_536
LONGEST_KEY = 65_535  # GGUF's own limit
LONGEST_STRING = 16 * 1024 * 1024  # chat templates have been 100 kB
MOST_ELEMENTS = 64 * 1024 * 1024
KEPT_ELEMENTS = 4_096  # longer arrays are vocabularies
MOST_LAYERS, LARGEST_FIGURE = 4_096, 2**24
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# Bytes of one element of a KV cache: blocks of 32 with one f16 scale.
ELEMENT = {"f16": 2.0, "q8_0": 34 / 32}
_PART = re.compile(r"^(.*)-00001-of-(\d{5})\.gguf$")

Value = str | int | float | bool | list[int | float | bool] | None


class NotReadable(ValueError):
    """No GGUF file, a broken one, or of a kind whose KV cache is not known here; a sentence."""


@dataclass(frozen=True, slots=True)
class Model:
    """What its KV cache depends on."""

    architecture: str
    elements: int  # of keys and values for one model token, over all layers; every layer keeping every token
    layers: int
    context: int | None  # model tokens that it was trained for: llama-server gives a slot no more
    window: int | None  # model tokens that its sliding-window layers look back
    recurrent: bool  # some layers keep a state of fixed size instead
    file_bytes: int  # of all its parts, as far as they lie side by side

    def bytes_per_token(self, kind: str) -> float:
        """Bytes of KV cache for a model token, in caches of type `kind` (f16, q8_0)."""
        return self.elements * ELEMENT[kind]


def read(path: Path) -> Model:
    """Raises NotReadable."""
    try:
        with path.open("rb") as file:
            header = _Header(file, str(path)).pairs()
        return _model(header, _size(path), str(path))
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error.strerror or error}.") from error


class _Header:
    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name, self._walked = file, name, 0

    def pairs(self) -> dict[str, Value]:
        """All pairs but the long arrays."""
        if self._read(len(MAGIC)) != MAGIC:
            raise NotReadable(f"{self._name} is not a GGUF file.")
        version = self._number(4)
        if version not in VERSIONS:
            raise NotReadable(f"{self._name} is GGUF of version {version}; known are 2 and 3, little-endian.")
        self._number(10)  # tensors
        count = self._below(self._number(10), MOST_PAIRS, "pairs")
        pairs: dict[str, Value] = {}
        for _ in range(count):
            key = self._string(LONGEST_KEY)
            pairs[key] = self._value(int(self._number(4)))
        return pairs

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            return self._string(LONGEST_STRING)
        if kind != ARRAY:
            return self._number(kind)
        kind = int(self._number(4))
        count = self._below(self._number(10), MOST_ELEMENTS, "elements")
        if kind == STRING:
            for _ in range(count):
                self._skip(self._below(self._number(10), LONGEST_STRING, "bytes of text"))
            return None
        if count > KEPT_ELEMENTS:
            self._skip(count * struct.calcsize(self._format(kind)))
            return None
        return [self._number(kind) for _ in range(count)]

    def _string(self, longest: int) -> str:
        return self._read(self._below(self._number(10), longest, "bytes of text")).decode(errors="replace")

    def _number(self, kind: int) -> int | float | bool:
        form = self._format(kind)
        (number,) = struct.unpack(form, self._read(struct.calcsize(form)))
        return number  # type: ignore[no-any-return]  # what `form` says

    def _format(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise NotReadable(f"{self._name} has a value of unknown type {kind}: it is damaged, or newer than this.")
        return NUMBERS[kind]

    def _below(self, number: float, most: int, what: str) -> int:
        if not 0 <= number <= most:
            raise NotReadable(f"{self._name} says that it has {number:,} {what} in one place: it is damaged.")
        return int(number)

    def _skip(self, count: int) -> None:
        self._bound(count)
        self._file.seek(count, 1)

    def _read(self, count: int) -> bytes:
        self._bound(count)
        data = self._file.read(count)
        if len(data) < count:
            raise NotReadable(f"{self._name} ends within its header: it is empty, cut off or still being written.")
        return data

    def _bound(self, count: int) -> None:
        self._walked += count
        if self._walked > HEADER_BYTES:
            raise NotReadable(f"{self._name} has a header without end.")


def _model(pairs: dict[str, Value], file_bytes: int, name: str) -> Model:
    architecture = pairs.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise NotReadable(f"{name} does not say what kind of model it is: it is no language model's file.")
    known = _Figures(pairs, architecture, name)
    layers = known.needed("block_count", MOST_LAYERS)
    window = known.number("attention.sliding_window")
    interval = known.number("full_attention_interval")
    recurrent = interval is not None or any(key.startswith(f"{architecture}.ssm.") for key in pairs)
    keeping = max(layers - (known.number("attention.shared_kv_layers") or 0), 1)
    elements = sum(known.elements(layer) for layer in range(keeping) if interval is None or (layer + 1) % interval == 0)
    if not elements:
        raise NotReadable(f"{name} has no layer with a KV cache.")
    return Model(architecture, elements, layers, known.number("context_length"), window, recurrent, file_bytes)


class _Figures:
    """The figures of one architecture, by layer where they differ."""

    def __init__(self, pairs: dict[str, Value], architecture: str, name: str) -> None:
        self._pairs, self._architecture, self._name = pairs, architecture, name
        self._latent = self.number("attention.key_length_mla") is not None  # its keys hold the values too

    def number(self, key: str, layer: int = 0) -> int | None:
        """None where the file has none; 0 is as good as none but for heads."""
        value = self._pairs.get(f"{self._architecture}.{key}")
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        if value is None:
            return None
        if isinstance(value, str | float) or not 0 <= value <= LARGEST_FIGURE:
            raise NotReadable(f"{self._name} says {self._architecture}.{key} = {value}: that cannot be.")
        return int(value) or (0 if "head_count" in key else None)

    def needed(self, key: str, most: int = LARGEST_FIGURE) -> int:
        value = self.number(key)
        if value is None or value > most:
            said = "does not say" if value is None else f"says {value:,} for"
            raise NotReadable(f"{self._name} {said} {self._architecture}.{key}: its KV cache is not known.")
        return value

    def elements(self, layer: int) -> int:
        """Of keys and values that one layer keeps for one model token."""
        heads = self.number("attention.head_count", layer)
        sharing = self.number("attention.head_count_kv", layer)
        sharing = heads if sharing is None else sharing
        if sharing is None:
            raise NotReadable(f"{self._name} does not say how many attention heads its layers have.")
        key = self._length("key", layer, heads)
        return sharing * (key if self._latent else key + self._length("value", layer, heads))

    def _length(self, what: str, layer: int, heads: int | None) -> int:
        slides = self._slides(layer) and self.number(f"attention.{what}_length_swa")
        length = slides or self.number(f"attention.{what}_length")
        return length or self.needed("embedding_length") // (heads or 1)

    def _slides(self, layer: int) -> bool:
        pattern = self._pairs.get(f"{self._architecture}.attention.sliding_window_pattern")
        return isinstance(pattern, list) and layer < len(pattern) and bool(pattern[layer])


def _size(path: Path) -> int:
    """Of a model that is split into files, all that lie beside its first."""
    first = _PART.match(path.name)
    if first is None:
        return path.stat().st_size
    parts = (path.with_name(f"{first[1]}-{part:05}-of-{first[2]}.gguf") for part in range(1, int(first[2]) + 1))
    return sum(part.stat().st_size for part in parts if part.is_file())
