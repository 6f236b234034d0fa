"""What a GGUF header says of a model's KV cache, and what is refused as none."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chatbackend.embedded.llama_server import bundled_model
from slots import gguf

SMALL = {
    "general.architecture": "llama", "llama.block_count": 30, "llama.embedding_length": 576,
    "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3, "llama.context_length": 8192,
}  # fmt: skip


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def packed(value: Any) -> bytes:
    """A value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kind, form = {bool: (7, "?"), int: (5, "i"), str: (8, "")}[type(value[0])]
    elements = b"".join(map(text, value)) if kind == 8 else struct.pack(f"<{len(value)}{form}", *value)
    return struct.pack("<IIQ", 9, kind, len(value)) + elements


def header(pairs: Mapping[str, Any], *, version: int = 3, count: int | None = None) -> bytes:
    body = b"".join(text(key) + packed(value) for key, value in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count) + body


def read(folder: Path, pairs: Mapping[str, Any]) -> gguf.Model:
    path = folder / "model.gguf"
    path.write_bytes(header(pairs))
    return gguf.read(path)


def test_the_demo_model_takes_what_its_saved_slots_were_measured_to_take() -> None:
    """23.06 kB for each model token, 16 bytes of which are the file's own."""
    model = gguf.read(bundled_model())
    assert (model.architecture, model.layers, model.context, model.window) == ("llama", 30, 8192, None)
    assert model.bytes_per_token("f16") == 2 * 30 * 3 * 64 * 2 == 23_056 - 16
    assert model.bytes_per_token("q8_0") == 30 * 2 * 3 * 64 * 34 / 32
    assert model.file_bytes == bundled_model().stat().st_size


@pytest.mark.parametrize(
    ("more", "elements"),
    [
        ({}, 30 * 3 * (64 + 64)),
        ({"llama.attention.key_length": 80}, 30 * 3 * (80 + 64)),
        ({"llama.attention.key_length": 80, "llama.attention.value_length": 96}, 30 * 3 * (80 + 96)),
        ({"llama.attention.head_count_kv": [3] * 10 + [1] * 20}, (10 * 3 + 20) * 128),
        ({"llama.attention.head_count_kv": [0] * 29 + [3]}, 3 * 128),
        ({"llama.attention.shared_kv_layers": 10}, 20 * 3 * 128),
        ({"llama.full_attention_interval": 4}, 7 * 3 * 128),
        (
            {
                "llama.attention.key_length": 576, "llama.attention.value_length": 512,
                "llama.attention.key_length_mla": 192, "llama.attention.head_count_kv": 1,
            },
            30 * 576,
        ),
        (
            {
                "llama.attention.key_length_swa": 32, "llama.attention.value_length_swa": 32,
                "llama.attention.sliding_window_pattern": [True] * 20 + [False] * 10,
            },
            3 * (20 * 64 + 10 * 128),
        ),
    ],
    ids=[
        "plain", "keys", "values", "by layer", "without heads", "shared", "every fourth", "latent", "sliding",
    ],
)  # fmt: skip
def test_every_way_in_which_layers_keep_keys_and_values_is_counted(
    more: dict[str, Any], elements: int, tmp_path: Path
) -> None:
    assert read(tmp_path, SMALL | more).elements == elements


def test_without_grouped_heads_every_head_keeps_its_own(tmp_path: Path) -> None:
    pairs = {key: value for key, value in SMALL.items() if "head_count_kv" not in key}
    assert read(tmp_path, pairs).elements == 30 * 9 * 128


def test_windows_and_states_are_told(tmp_path: Path) -> None:
    model = read(tmp_path, SMALL | {"llama.attention.sliding_window": 1024, "llama.ssm.state_size": 16})
    assert (model.window, model.recurrent) == (1024, True)
    assert not read(tmp_path, SMALL).recurrent


def test_vocabularies_before_and_after_are_walked_over(tmp_path: Path) -> None:
    words = {"tokenizer.ggml.tokens": [f"w{n}" for n in range(9_000)], "tokenizer.ggml.token_type": [1] * 9_000}
    between = {"general.name": "Räuber", "llama.rope.freq_base": 1e4, "tokenizer.ggml.add_bos_token": True}
    assert read(tmp_path, words | between | SMALL | {"x.more": [True, False]}).elements == 11_520


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    first = tmp_path / "big-00001-of-00003.gguf"
    first.write_bytes(header(SMALL))
    (tmp_path / "big-00002-of-00003.gguf").write_bytes(b"x" * 1000)
    assert gguf.read(first).file_bytes == first.stat().st_size + 1000


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty, cut off"),
        (b"PK\x03\x04 a zip", "is not a GGUF file"),
        (header(SMALL)[:-9], "cut off"),
        (header(SMALL, version=1), "version 1"),
        (header(SMALL, version=0x03000000), "little-endian"),
        (header(SMALL, count=2**40), "it is damaged"),
        (header(SMALL, count=7), "cut off"),
        (header({}), "what kind of model"),
        (header({"general.architecture": "llama"}), "llama.block_count"),
        (header(SMALL | {"llama.block_count": 2**20}), "llama.block_count"),
        (header(SMALL | {"llama.block_count": "many"}), "cannot be"),
        (header(SMALL | {"llama.attention.head_count": -1}), "cannot be"),
        (header(SMALL | {"llama.attention.head_count_kv": 0}), "no layer with a KV cache"),
        (header({"general.architecture": "llama", "llama.block_count": 2}), "attention heads"),
        (header({}, count=1) + text("a") + struct.pack("<I", 99), "unknown type 99"),
        (header({}, count=1) + text("a") + struct.pack("<IIQ", 9, 9, 1), "unknown type 9"),
        (header({}, count=1) + text("a") + struct.pack("<IIQ", 9, 8, 2**50), "it is damaged"),
        (header({}, count=1) + struct.pack("<Q", 2**40), "it is damaged"),
    ],
)
def test_what_is_no_models_header_is_refused_with_a_sentence(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(gguf.NotReadable, match=sentence) as refused:
        gguf.read(path)
    assert str(path) in str(refused.value)


def test_a_header_without_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "HEADER_BYTES", 1_000)
    with pytest.raises(gguf.NotReadable, match="without end"):
        read(tmp_path, {"tokenizer.ggml.tokens": ["word"] * 200} | SMALL)


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(gguf.NotReadable, match="cannot be read"):
            gguf.read(path)
