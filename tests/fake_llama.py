"""The scripted llama-server: the real one's behaviour on a real socket, with answers and faults by script.

In the test's own process, on a thread of its own:

    with FakeLlama(slots=2, n_ctx=512) as server:
        server.script(Script(tokens=200, rate=50, fault="drop", after=10))
        requests.post(f"{server.url}/v1/chat/completions", …)
        assert server.most_at_once == {0: 1}

As a process of its own, to be killed, stopped or restarted on its port (tests.llama.fake_llama_process):

    python -m tests.fake_llama --port 0 --slots 4 --n-ctx 2048

What it says by default, and what a Script may hold: tests/scripted/script.py. How true it is:
tests/test_llama_conformance.py.
"""

import argparse
import asyncio
import threading
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.scripted.journal import Journal, Record
from tests.scripted.routes import Backend, Behaviour, Options
from tests.scripted.script import Fault, Script, Scripts, ScriptSource, default_answer
from tests.scripted.web import serve

__all__ = ["FakeLlama", "Fault", "Record", "Script", "default_answer"]


class FakeLlama:
    """A scripted server on 127.0.0.1; its port stays the same over `stop()` and `start()`, everything else is new.

    Options are those of `tests.scripted.routes.Options`.
    """

    def __init__(self, *, port: int = 0, **options: Any) -> None:
        self.options = Options(**options)
        self.behaviour = Behaviour()
        self.journal = Journal()
        self._scripts = Scripts()
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: OSError | None = None
        self._transports: set[asyncio.WriteTransport] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    # Running

    def start(self) -> None:
        """Begin to listen: as a fresh process would, with empty slots and no streams."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), name="fake-llama", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End as a killed process would: every connection breaks off."""
        if self._loop is None or self._stopping is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop = None

    def restart(self) -> None:
        self.stop()
        self.start()

    async def listen(self) -> tuple[Backend, asyncio.Server]:
        """A fresh backend behind the port. Raises OSError when the port is taken."""
        backend = Backend(self.options, self.behaviour, self._scripts, self.journal)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._transports.add(writer.transport)
            try:
                await serve(backend.handle, reader, writer)
            finally:
                self._transports.discard(writer.transport)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(connected(reader, writer))
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", self._port, backlog=512)
        self._port = server.sockets[0].getsockname()[1]
        return backend, server

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            backend, server = await self.listen()
        except OSError as error:
            self._failure = error
            return
        finally:
            ready.set()
        loop = asyncio.ensure_future(backend.engine.run())
        stopped = asyncio.ensure_future(self._stopping.wait())
        # A broken engine must break the test, not leave it waiting for tokens.
        await asyncio.wait((loop, stopped), return_when=asyncio.FIRST_COMPLETED)
        server.close()
        for transport in list(self._transports):
            transport.abort()
        await self._end_handlers()
        self.journal.close()
        if loop.done():
            loop.result()
        loop.cancel()

    async def _end_handlers(self) -> None:
        handlers = list(self._handlers)
        for handler in handlers:
            handler.cancel()
        for outcome in await asyncio.gather(*handlers, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    # What a test says and asks

    def script(self, source: ScriptSource) -> None:
        """Answer by this script, or by what this function of the request's body returns (None: not this one)."""
        self._scripts.add(source)

    def set(self, **behaviour: Any) -> None:
        """Change what `tests.scripted.routes.Behaviour` names, from now on."""
        self.behaviour.change(**behaviour)

    @property
    def requests(self) -> list[Record]:
        """Every completion so far, oldest first."""
        return self.journal.requests

    @property
    def most_at_once(self) -> dict[int, int]:
        """By slot: how many unfinished requests named it at one moment, at most."""
        return self.journal.most_at_once

    @property
    def most_deferred(self) -> int:
        """How many requests waited inside the server at one moment, at most (`requests_deferred`)."""
        return self.journal.most_deferred


def options_from(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_llama", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    for option in fields(Options):
        name, default = f"--{option.name.replace('_', '-')}", option.default
        if isinstance(default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default)
        else:
            kind = Path if option.name == "slot_save_path" else type(default) if default is not None else str
            parser.add_argument(name, type=kind, default=default)
    return vars(parser.parse_args(argv))


async def _serve_for_ever(server: FakeLlama) -> None:
    backend, _ = await server.listen()
    print(f"listening on {server.url}", flush=True)  # noqa: T201
    await backend.engine.run()


if __name__ == "__main__":
    asyncio.run(_serve_for_ever(FakeLlama(**options_from())))
