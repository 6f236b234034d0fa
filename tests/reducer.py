"""The browser's own reducer, `conversation.js`, in the node that playwright brings."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import playwright

from tests.llama import ROOT

Frame = dict[str, Any]
_NODE = Path(playwright.__file__).parent / "driver" / "node"


class Reducer:
    """Any number of pages, each with its conversation, in one process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def apply(self, page: str, conversation: str, frame: Frame) -> tuple[bool, list[Frame]]:
        """Whether the page subscribes again after `frame`, and the messages that it shows."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        asked = {"page": page, "conversation": conversation, "frame": frame}
        stdin.write(json.dumps(asked).encode() + b"\n")
        stdin.flush()
        told = json.loads(stdout.readline())
        return told["ask"], told["messages"]


@contextmanager
def reducer() -> Iterator[Reducer]:
    command = [str(_NODE), str(ROOT / "tests/reducer.mjs"), str(ROOT / "conversations/static/chat/conversation.js")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Reducer(process)
        assert process.stdin
        process.stdin.close()
