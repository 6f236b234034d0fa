"""What `up` makes of LLAMA_SERVER_BIN, LLAMA_MODEL and LLAMA_ARGS before it starts anything."""

import os
import socket
import sys
from pathlib import Path

import pytest

from chatbackend.embedded import llama
from chatbackend.embedded.llama import Wish, hint, kept_key, kept_port, wish
from chatbackend.embedded.llama_flags import REASONS, our_variables
from chatbackend.embedded.parts import CannotStart, Part


def asked(**environ: str) -> Wish:
    return wish(environ, slots=4, slot_context=2048)


def part_of(wished: Wish, tmp_path: Path, **environ: str) -> Part:
    return llama.part(wished, tmp_path, 4711, tmp_path / "key", tmp_path / "lock", tmp_path, environ)


@pytest.mark.parametrize("flag", sorted(REASONS))
def test_every_spelling_of_a_flag_of_ours_is_refused_by_name(flag: str) -> None:
    with pytest.raises(CannotStart, match=f"^LLAMA_ARGS must not contain {flag}: ."):
        asked(LLAMA_SERVER_BIN=sys.executable, LLAMA_ARGS=f"-ngl 99 {flag} 1")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--parallel=8", "--parallel"),
        ("-np=8", "-np"),
        ("--cache_ram 100", "--cache_ram"),
        ("-fa on '--slot_prompt-similarity' 0.5", "--slot_prompt-similarity"),
        ("--gpt-oss-20b-default", "--gpt-oss-20b-default"),
    ],
)
def test_other_ways_of_writing_a_flag_of_ours_are_refused_too(args: str, named: str) -> None:
    with pytest.raises(CannotStart, match=f"^LLAMA_ARGS must not contain {named}: "):
        asked(LLAMA_SERVER_BIN=sys.executable, LLAMA_ARGS=args)


def test_a_persons_own_flags_come_through_and_ours_come_last(tmp_path: Path) -> None:
    wished = asked(LLAMA_SERVER_BIN=sys.executable, LLAMA_ARGS="-ngl 99 -fa on -ot 'blk.*=CPU' --spec-default")
    command = part_of(wished, tmp_path).command
    theirs = command.index("-ngl")
    assert command[theirs : theirs + 7] == ("-ngl", "99", "-fa", "on", "-ot", "blk.*=CPU", "--spec-default")
    assert command[theirs + 7 :] == llama.isolation(wished, 4711, tmp_path / "key", tmp_path / "slots")


def test_the_isolation_flags_are_those_that_were_tried(tmp_path: Path) -> None:
    flags = " ".join(llama.isolation(asked(), 4711, Path("/key"), Path("/slots")))
    assert "-np 4 -c 8192 --no-kv-unified --cache-ram 0 -sps 0 --cache-reuse 0 --metrics" in flags
    assert flags.endswith("--host 127.0.0.1 --port 4711 --api-key-file /key --slot-save-path /slots")


def test_batches_are_small_on_the_built_in_server_and_theirs_to_choose_on_their_own(tmp_path: Path) -> None:
    assert " -b 64 -ub 64 " in " ".join(part_of(asked(), tmp_path).command)
    own = asked(LLAMA_SERVER_BIN=sys.executable, LLAMA_ARGS="-b 2048 --ubatch-size=1024 -t 7")
    command = part_of(own, tmp_path).command
    assert command.count("-b") == 1
    assert "-ub" not in command
    assert command.count("-t") == 1


def test_one_core_is_left_to_the_others(tmp_path: Path) -> None:
    command = part_of(asked(), tmp_path).command
    assert command[command.index("-t") + 1] == str(max(1, (os.cpu_count() or 1) - 1))


def test_a_flag_that_the_built_in_server_does_not_have_is_refused() -> None:
    with pytest.raises(CannotStart, match=r"^LLAMA_ARGS: invalid argument: --rpc"):
        asked(LLAMA_ARGS="--rpc host")


def test_arguments_that_are_no_words_are_refused() -> None:
    with pytest.raises(CannotStart, match=r"^LLAMA_ARGS cannot be split into words: No closing quotation"):
        asked(LLAMA_ARGS="-ot 'blk")


def test_a_program_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "llama-server"
    plain.write_text("not a program")
    for named in (str(plain), "/no/such/llama-server", "no-such-llama-server"):
        with pytest.raises(CannotStart, match=f"^LLAMA_SERVER_BIN: {named} is not a program that can be run"):
            asked(LLAMA_SERVER_BIN=named)


def test_an_unreadable_model_is_refused_with_its_reason(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    for named, reason in {
        "/no/such.gguf": "cannot be read: No such file or directory",
        str(tmp_path): "cannot be read: Is a directory",
        str(text): "is not a GGUF file",
    }.items():
        with pytest.raises(CannotStart, match=rf"^the model {named} \(LLAMA_MODEL\) {reason}$"):
            asked(LLAMA_MODEL=named)


def test_variables_that_would_undo_a_flag_of_ours_do_not_reach_the_server(tmp_path: Path) -> None:
    flags = (
        "N_PARALLEL KV_UNIFIED NO_KV_UNIFIED CACHE_RAM CONTEXT_SHIFT CTX_SIZE PORT MODELS_DIR AGENT MCP_SERVERS_JSON"
    )
    names = [*(f"LLAMA_ARG_{flag}" for flag in flags.split()), "LLAMA_API_KEY", "LLAMA_SERVER_SLOTS_DEBUG"]
    undoing = dict.fromkeys(names, "1")
    kept = {"LLAMA_ARG_N_GPU_LAYERS": "99", "CUDA_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    secret = {"SECRET_KEY": "s", "DATABASE_URL": "d", "ADMIN_PASSWORD": "p"}
    assert our_variables(undoing | kept) == sorted(undoing)
    assert dict(part_of(asked(), tmp_path, **undoing, **kept, **secret).env) == kept | {"PYTHONUNBUFFERED": "1"}


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    key = kept_key(tmp_path)
    first = key.read_text()
    assert len(first) > 30
    assert kept_key(tmp_path).read_text() == first
    assert key.stat().st_mode & 0o777 == 0o600


def test_an_empty_key_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "api_key").touch()
    assert len(kept_key(tmp_path).read_text()) > 30


def test_the_port_is_kept_unless_it_is_taken(tmp_path: Path) -> None:
    port = kept_port(tmp_path)
    assert kept_port(tmp_path) == port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert kept_port(tmp_path) != port


@pytest.mark.parametrize("content", ["", "nonsense", "99999"])
def test_a_damaged_port_is_chosen_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "port").write_text(content)
    assert 0 < kept_port(tmp_path) < 65536


def test_a_llama_server_on_path_is_told_how_to_be_used(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    line = hint({"PATH": str(tmp_path)})
    assert line is not None
    assert f"LLAMA_SERVER_BIN={program} LLAMA_MODEL=/path/to/model.gguf" in line
    assert hint({"PATH": "/nowhere"}) is None
