"""The web process: how it starts, what it lets through, how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Origin

from chatbackend.environment import lan_address
from chatbackend.web_protocols import LONGEST_BODY
from conversations import events, turns
from conversations.api.sse import KEEP_ALIVE
from conversations.models import Conversation
from tests import factories, worker
from tests.eventually import eventually
from tests.llama import ROOT
from tests.stack import database_environment
from tests.test_api_conversations import refused
from tests.test_sse import asking
from tests.web import Person, StartWeb, Web

pytestmark = pytest.mark.django_db(transaction=True)


def memory(web: Web) -> int:
    """Bytes of memory the process has."""
    return int(Path(f"/proc/{web.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The most memory the process has had since."""

    def __init__(self, web: Web) -> None:
        self._process = Path(f"/proc/{web.process.pid}")
        (self._process / "clear_refs").write_text("5")
        self._before = memory(web)

    @property
    def growth(self) -> int:
        peak = re.search(r"VmHWM:\s+(\d+) kB", (self._process / "status").read_text())
        assert peak
        return int(peak[1]) * 1024 - self._before


def cpu_seconds(web: Web) -> float:
    fields = Path(f"/proc/{web.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(web: Web) -> int:
    return len(os.listdir(f"/proc/{web.process.pid}/fd"))


# -- its end


def test_asked_to_end_it_tells_sockets_to_come_back_and_at_the_next_process_they_have_missed_nothing(
    start_web: StartWeb,
) -> None:
    web, next_ = start_web(), start_web()
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    person = web.person()
    with person.tab(where) as tab:
        worker.publish(claim, "before ")
        tab.until("generation.delta")
        web.process.process.terminate()
        worker.publish(claim, "meanwhile ")
        with pytest.raises(ConnectionClosed) as caught:
            tab.until("its end")
        assert caught.value.rcvd
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1012, "service restart")
    assert web.process.process.wait(10) == 0
    assert "Traceback" not in web.process.output()
    with Person(next_, person.pk, person.token).tab(where) as tab:
        worker.publish(claim, "after")
        worker.finish(claim)
        while tab.status[str(claim.generation)] != "done":
            tab.next()
    assert tab.shown[str(claim.generation)] == "before meanwhile after" == worker.look(claim).text


def test_asked_twice_it_still_ends_in_good_order(start_web: StartWeb) -> None:
    web = start_web()
    factories.server()
    with asking(web.person(), factories.conversation(factories.person("alice"))) as stream:
        stream.until("generation.snapshot")
        web.process.process.send_signal(signal.SIGINT)
        web.process.process.terminate()
        assert stream.next() is None
    assert web.process.process.wait(10) == 0


def test_an_interrupt_is_an_orderly_end_too(start_web: StartWeb) -> None:
    web = start_web()
    web.process.process.send_signal(signal.SIGINT)
    assert web.process.process.wait(10) == 0


def test_a_stream_ends_properly_and_its_answer_goes_on(start_web: StartWeb) -> None:
    web = start_web()
    factories.server()
    where = factories.conversation(factories.person("alice"))
    with asking(web.person(), where) as stream:
        stream.until("generation.snapshot")
        claim = worker.claimed()
        began = time.monotonic()
        web.process.process.terminate()
        assert stream.next() is None, "the stream has an end, not a broken connection"
        assert time.monotonic() - began < 3
    assert web.process.process.wait(10) == 0
    assert worker.look(claim).live


def test_requests_that_are_being_answered_finish(start_web: StartWeb) -> None:
    web = start_web(DJANGO_SETTINGS_MODULE="chatbackend.settings")  # passwords are hashed as slowly as in the product
    answers: list[requests.Response] = []

    def sign_up() -> None:  # hashing the password takes a while
        body = {"username": "alice", "password": "correct horse battery"}
        answers.append(requests.post(f"{web.address}/_allauth/app/v1/auth/signup", json=body, timeout=20))

    idle = cpu_seconds(web)
    thread = threading.Thread(target=sign_up)
    thread.start()
    eventually(lambda: cpu_seconds(web) > idle + 0.1, 5, every=0.01, what="the password to be hashed")
    web.process.process.terminate()
    thread.join()
    assert answers[0].status_code == 200
    assert web.process.process.wait(10) == 0


def test_it_takes_no_new_connections_while_it_ends(start_web: StartWeb) -> None:
    web = start_web()
    web.process.process.terminate()
    web.process.process.wait(10)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{web.address}/healthz", timeout=5)


def test_the_next_process_goes_on_where_a_killed_one_was(start_web: StartWeb) -> None:
    first, second = start_web(), start_web()
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    person = first.person()
    with person.tab(where) as tab:
        worker.publish(claim, "before ")
        tab.until("generation.delta")
        first.process.kill()
        worker.publish(claim, "meanwhile ")
        with pytest.raises(ConnectionClosed):
            tab.next()
    with Person(second, person.pk, person.token).tab(where) as tab:
        worker.publish(claim, "after")
        worker.finish(claim)
        tab.until("generation.done")
    assert tab.shown[str(claim.generation)] == "before meanwhile after" == worker.look(claim).text


def test_nothing_is_silent_for_half_as_long_as_proxies_wait() -> None:
    """They cut after 60 s: who waits longer for a prompt to be read must not notice."""
    page = (ROOT / "conversations/static/chat/connection.js").read_text()
    pings = [int(ms.replace("_", "")) / 1000 for ms in re.findall(r"_PING = ([\d_]+);", page)]
    daphne = find_spec("daphne.server")  # not imported: it takes the event loop of its process
    assert daphne
    assert daphne.origin
    served = re.search(r"ping_interval=(\d+)", Path(daphne.origin).read_text())
    assert served
    assert len(pings) == 2
    assert max(*pings, int(served[1]), KEEP_ALIVE) <= 30


# -- its start


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "chatbackend.web", *words], env=database_environment(), capture_output=True, text=True,
        timeout=30, cwd=Path(__file__).parent.parent, check=False,
    )  # fmt: skip


def test_a_taken_port_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("error: cannot listen on 127.0.0.1 port")


def test_a_descriptor_that_is_no_socket_is_one_line_and_exit_code_1() -> None:
    ended = run("--fd", "97")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)


# -- what it lets through


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [LONGEST_BODY + 1, 10 * LONGEST_BODY])
def test_a_body_that_is_too_large_is_refused_with_both_numbers(alice: Person, size: int, chunked: bool) -> None:
    body = b'"' + b"x" * (size - 2) + b'"'
    data = (body[at : at + 65536] for at in range(0, size, 65536)) if chunked else body
    answer = alice.request("POST", "/api/v1/conversations/", data=data, headers={"Content-Type": "application/json"})
    said = refused(answer, 413, "too_large")
    assert "1,048,576" in said["detail"]


def test_a_body_of_the_full_size_is_taken(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    assert alice.say(where, "x" * 200_000).status_code == 202
    body = json.dumps({"title": "x" * (LONGEST_BODY - 20)}).encode()
    answer = alice.request("POST", "/api/v1/conversations/", data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_a_body_without_end_costs_no_memory_and_is_cut(alice: Person) -> None:
    before = memory(alice.web)
    host, _, port = alice.web.address.removeprefix("http://").partition(":")
    sent = 0
    with closing(socket.create_connection((host, int(port)), 10)) as connection:
        connection.sendall(
            b"POST /api/v1/conversations/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with suppress(OSError):  # reset or broken pipe, whichever comes first
            while sent < 100 * LONGEST_BODY:
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent += 65536
    assert sent < 40 * LONGEST_BODY
    assert memory(alice.web) - before < 20 * LONGEST_BODY


def test_what_is_no_http_is_refused_in_the_same_shape(web: Web) -> None:
    host, _, port = web.address.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(port)), 10)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_client_that_stops_reading_gets_everything_once_it_reads_again(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    with alice.tab(where) as stalled, alice.tab(where) as reader:
        for round_ in range(20):  # 10 MB in all: more than the buffers of a socket on both sides
            worker.publish(claim, *["x" * 100_000] * 5)
            reader.has(claim.generation, (round_ + 1) * 5)
        worker.finish(claim)
        reader.has(claim.generation, 101)
        stalled.has(claim.generation, 101, 30)
    assert stalled.shown == reader.shown
    assert stalled.status == reader.status == {str(claim.generation): "done"}
    with alice.tab(where) as newcomer:  # one frame, longer than any that is read
        assert newcomer.shown == reader.shown


def test_a_client_that_does_not_read_costs_bounded_memory_and_then_gets_a_snapshot(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    update = {"type": "conversation.updated", "conversation": {"title": "x" * 20_000}}
    with alice.tab(where) as stalled, alice.tab() as reader:
        peak = Peak(alice.web)
        for _ in range(60):  # 120 MB in all, no faster than they can be heard
            events.publish_to_person(alice.pk, *[update] * 100)
            for _ in range(100):
                reader.expect("conversation.updated")
        assert peak.growth < 60_000_000
        stalled.until("snapshot", 30)
        assert stalled.answers()


def test_a_flood_is_not_read_faster_than_it_is_answered(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    for _ in range(40):
        turns.cancel(alice.pk, factories.sent(where).generation.pk)
    frame = json.dumps({"type": "subscribe", "conversation": str(where.pk)})
    padded = frame[:-1] + " " * 1_000_000 + "}"
    with alice.tab() as tab:
        peak = Peak(alice.web)
        reading = threading.Thread(target=lambda: [tab.connection.recv(20) for _ in range(150)])
        reading.start()
        for _ in range(150):
            tab.connection.send(padded)
        reading.join()
    assert peak.growth < 100_000_000


def test_one_line_in_the_log_for_each_request_and_none_of_its_secrets(start_web: StartWeb) -> None:
    web = start_web()
    web.person().get("conversations/?cursor=secret")
    line = eventually(lambda: [line for line in web.process.output().splitlines() if "GET /api/v1" in line])[0]
    assert "/api/v1/conversations/ 400" in line
    assert "secret" not in web.process.output()


# -- on the LAN


def test_on_every_address_the_names_of_the_lan_are_ours_without_further_settings(start_web: StartWeb) -> None:
    web = start_web(HOST="0.0.0.0")
    person = web.person()
    port = web.address.rpartition(":")[2]
    names = [socket.gethostname(), f"{socket.gethostname()}.local", *filter(None, [lan_address()])]
    for name in names:
        host = f"{name}:{port}"
        assert person.get("conversations/", headers={"Host": host}).status_code == 200
        page = requests.Session()
        config = page.get(f"{web.address}/_allauth/browser/v1/config", headers={"Host": host}, timeout=5)
        token = config.cookies["csrftoken"]
        headers = {"Host": host, "Origin": f"http://{host}", "X-CSRFToken": token}
        cookies = {"csrftoken": token, "sessionid": person.token}
        made = requests.post(
            f"{web.address}/api/v1/conversations/", json={}, headers=headers, cookies=cookies, timeout=5
        )
        assert made.status_code == 201, made.text
        with (
            socket.create_connection(("127.0.0.1", int(port))) as direct,
            connect(
                f"ws://{host}/ws/", sock=direct, origin=Origin(f"http://{host}"),
                additional_headers={"Cookie": f"sessionid={person.token}"},
            ) as connection,
        ):  # fmt: skip
            assert json.loads(connection.recv(10))["type"] == "ready"
    assert person.get("conversations/", headers={"Host": "evil.example"}).status_code == 400


def test_beyond_loopback_only_invited_people_join(start_web: StartWeb) -> None:
    web = start_web(HOST="0.0.0.0")
    body = {"username": "alice", "password": "correct horse battery"}
    answer = requests.post(f"{web.address}/_allauth/app/v1/auth/signup", json=body, timeout=20)
    assert answer.json()["code"] == "invite_missing"
