"""`check_servers --prove` shows on an idle server whether one conversation's text gets into another's answer."""

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import pytest
import requests
from django.core.management import CommandError, call_command

from slots import leases, proof
from slots.client import LlamaServer, ServerError, Stream
from slots.models import Server, Slot
from slots.probe import Disturbed
from tests import factories, llama_client
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Record
from tests.llama import API_KEY, real_llama_server
from tests.llama_both import BOTH

DEFAULTS = {"cache_ram": True, "kv_unified": True}
DEFAULT_FLAGS = ("-np", "-1", "-c", "1024", "-b", "64", "-ub", "64")


@pytest.fixture(params=BOTH)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "real":
        monkeypatch.setattr(proof, "STORY_TOKENS", 24)  # short, for its one thread
        monkeypatch.setattr(proof, "ANSWER_TOKENS", 40)
    return str(request.param)


@contextmanager
def with_defaults(kind: str) -> Iterator[str]:
    """The address of a server on llama-server's default flags."""
    with ExitStack() as stack:
        if kind == "real":
            yield stack.enter_context(real_llama_server(slots=2, flags=DEFAULT_FLAGS, api_key=None)).url
        else:
            yield stack.enter_context(FakeLlama(**DEFAULTS)).url


def prove(url: str, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Its exit code, and what it said; CommandError where it refuses."""
    with pytest.raises(SystemExit) as ended:
        call_command("check_servers", url, "--prove", *arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def untouched(fake: FakeLlama) -> bool:
    return not fake.journal.raw and not fake.requests


@pytest.mark.django_db
def test_on_default_flags_the_other_conversation_gets_in_and_the_flags_that_keep_it_out_are_said(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with with_defaults(kind) as url:
        code, said = prove(url, "--yes", capsys=capsys)
        assert not any(slot["is_processing"] for slot in requests.get(f"{url}/slots", timeout=5).json())
    assert code == 2
    before, _, after = said.partition("here they part")
    assert "A alone" in before
    left, right = zip(*(line.split("│") for line in after.splitlines() if "│" in line), strict=True)
    assert " ".join(left).split() != " ".join(right).split()
    assert "B's conversation got into A's answer" in after
    assert "--cache-ram 0 -sps 0" in after


def test_on_strict_flags_both_answers_are_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("real_llama" if kind == "real" else "fake_llama")
    shown = proof.show(LlamaServer(server.url, API_KEY if kind == "real" else ""))
    assert shown.alone == shown.beside
    assert len(shown.alone) > 100
    assert "letter by letter" in proof.text(shown, ram_cache=False)


def test_one_slot_is_enough_to_show_it() -> None:
    with FakeLlama(slots=1, cache_ram=True) as fake:
        assert proof.show(LlamaServer(fake.url)).spliced
        asked = [one for one in fake.journal.raw if one.body["prompt"] == proof.QUESTION]
    assert len(asked) == 3
    assert all(one.cache_n == 0 and one.body == asked[0].body and one.ended for one in asked)


@pytest.mark.django_db
def test_it_asks_first_and_sends_nothing_without_a_yes(
    fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for reply in ("", "no"):
        monkeypatch.setattr(builtins, "input", lambda _, reply=reply: reply)
        with pytest.raises(CommandError, match=r"Nothing was sent\."):
            prove(fake_llama.url, capsys=capsys)
    monkeypatch.setattr(builtins, "input", nobody_answers)
    with pytest.raises(CommandError, match=r"Nothing was sent\."):
        prove(fake_llama.url, capsys=capsys)
    assert untouched(fake_llama)
    assert "dragon" in capsys.readouterr().out
    monkeypatch.setattr(builtins, "input", lambda _: "y")
    assert prove(fake_llama.url, capsys=capsys)[0] == 1


def nobody_answers(prompt: str) -> str:
    raise EOFError


@pytest.mark.django_db
def test_a_server_of_this_site_is_left_alone_until_it_is_drained_and_nobody_is_leased_there(
    fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]
) -> None:
    server = factories.server(url="http://its-other-name.test:8080")
    Server.objects.filter(pk=server.pk).update(boot=LlamaServer(fake_llama.url).props().boot)
    with pytest.raises(CommandError, match="in service on this site"):
        prove(fake_llama.url, "--yes", capsys=capsys)
    lease = factories.idle(server)
    Server.objects.filter(pk=server.pk).update(state="draining")
    with pytest.raises(CommandError, match="leased to conversations of this site"):
        prove(fake_llama.url, "--yes", capsys=capsys)
    assert untouched(fake_llama)
    assert leases.evict(lease.slot, Slot.objects.get(pk=lease.slot).fence)
    assert prove(fake_llama.url, "--yes", capsys=capsys)[0] == 1


@pytest.mark.django_db
def test_a_busy_server_is_left_alone(fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]) -> None:
    with llama_client.Server(fake_llama.url).open("A story", id_slot=2, max_tokens=900, ignore_eos=True):
        code, said = prove(fake_llama.url, "--yes", capsys=capsys)
    assert (code, "it is in use: Slot 2 is busy" in said) == (4, True)
    assert not fake_llama.journal.raw


def test_somebody_else_in_between_makes_it_worth_nothing(fake_llama: FakeLlama) -> None:
    play = proof._Play(LlamaServer(fake_llama.url), 0)
    llama_client.Server(fake_llama.url).chat("A story", id_slot=3)
    with pytest.raises(Disturbed):
        play.run()


def test_a_server_that_never_says_the_same_twice_proves_nothing(
    fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = proof._pieces
    monkeypatch.setattr(proof, "_pieces", lambda stream: chain(said(stream), [llama_client.words(1)]))
    with pytest.raises(proof.Unproved, match="differently each time"):
        proof.show(LlamaServer(fake_llama.url))


def test_an_answer_that_ends_before_anybody_comes_between_proves_nothing(
    fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "ANSWER_TOKENS", proof.BEFORE + 2)
    with pytest.raises(proof.Unproved, match="could come between"):
        proof.show(LlamaServer(fake_llama.url))


@pytest.mark.django_db
def test_whatever_ends_it_nothing_runs_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = proof._pieces

    def interrupted(stream: Stream) -> Iterator[str]:
        for number, piece in enumerate(said(stream)):
            yield piece
            if number == 20 and texts()[3:]:  # both are there
                raise KeyboardInterrupt

    def texts() -> list[Record]:
        """All but the random words."""
        return [one for one in fake.journal.raw if one.body["max_tokens"] > 1]

    monkeypatch.setattr(proof, "_pieces", interrupted)
    monkeypatch.setattr(proof, "ANSWER_TOKENS", 200)
    with FakeLlama(**DEFAULTS, rate=200) as fake:
        with pytest.raises(CommandError, match="nothing of it runs on"):
            prove(fake.url, "--yes", capsys=capsys)
        eventually(lambda: all(not state.busy for state in LlamaServer(fake.url).slots()))
        assert [one.outcome for one in texts()][2] == "cancelled"
        assert texts()[2].predicted_n < 100


def test_a_model_cannot_steer_the_terminal() -> None:
    said = proof.text(proof.Shown("red \x1b[31m hat", "red \x1b[31m hat"), ram_cache=True)
    assert "\x1b" not in said
    assert "RAM cache is on" in said


def test_the_text_before_the_difference_ends_with_a_whole_word() -> None:
    said = proof.text(proof.Shown("the steam engine", "the stern dragon"), ram_cache=True)
    assert said.splitlines()[4].split() == ["the", "│", "the"]


def test_it_names_a_server_and_does_not_only_look(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--prove"], ["http://127.0.0.1:9", "--prove", "--no-probe"]):
        with pytest.raises(CommandError, match="name its address"):
            call_command("check_servers", *arguments)
    code, said = prove("http://127.0.0.1:9", "--yes", capsys=capsys)
    assert (code, "Start llama-server there" in said) == (3, True)


def test_a_server_that_breaks_off_is_told(fake_llama: FakeLlama) -> None:
    client = LlamaServer(fake_llama.url)
    fake_llama.set(embeddings=True)
    with pytest.raises(ServerError):
        proof.show(client)
