"""What a tab sees while Valkey or Postgres is away: late, never wrong, never for ever."""

import uuid

import pytest
from websockets.sync.client import connect

from conversations.claims import Claim
from conversations.models import Conversation, Generation
from tests import factories, worker
from tests.eventually import eventually
from tests.outages import hanging_valkey, no_postgres, no_valkey
from tests.web import Person, StartWeb, Tab

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    factories.server()
    return factories.conversation(factories.person("alice"))


def read_until(tab: Tab, claim: Claim, text: str) -> None:
    """Whether it comes as events or as a snapshot is the server's choice."""
    while tab.shown[str(claim.generation)] != text:
        tab.next(20)


def read_until_done(tab: Tab, claim: Claim) -> None:
    while tab.status[str(claim.generation)] != "done":
        tab.next(20)


@pytest.mark.parametrize("outage", [no_valkey, hanging_valkey])
def test_a_whole_turn_is_shown_without_valkey(alice: Person, where: Conversation, outage: object) -> None:
    assert callable(outage)
    with outage(), alice.tab(where) as tab:
        tab.say(where)
        tab.expect("message.created")
        claim = worker.claimed()
        factories.wrote(claim, "Slower ", "than ")
        read_until(tab, claim, "Slower than ")
        factories.wrote(claim, "usual.")
        read_until(tab, claim, "Slower than usual.")
        worker.finish(claim)
        read_until_done(tab, claim)
        assert tab.shown[str(claim.generation)] == worker.look(claim).text == "Slower than usual."
        assert tab.answers()


def test_an_answer_goes_on_when_valkey_dies_and_comes_back(alice: Person, where: Conversation) -> None:
    with alice.tab(where) as tab:
        tab.say(where)
        tab.expect("message.created")
        claim = worker.claimed()
        worker.publish(claim, "before ")
        read_until(tab, claim, "before ")
        with no_valkey():
            worker.publish(claim, "during ")
            read_until(tab, claim, "before during ")
        worker.publish(claim, "after")
        read_until(tab, claim, "before during after")
        worker.finish(claim)
        read_until_done(tab, claim)


def test_a_turn_that_a_tab_heard_nothing_of_is_shown_once_valkey_is_back(alice: Person, where: Conversation) -> None:
    with alice.tab(where) as tab:
        with no_valkey():
            assert alice.say(where, "From the phone").status_code == 202
            claim = worker.claimed()
            factories.wrote(claim, "All of it")
            worker.finish(claim)
        assert tab.until("snapshot")["messages"][0]["text"] == "From the phone"
        assert tab.status[str(claim.generation)] == "done"


def test_the_place_of_a_socket_in_a_group_outlives_valkey(alice: Person, where: Conversation) -> None:
    with alice.tab(where) as tab:
        with no_valkey():
            pass

        def hears() -> bool:
            """What is said before the layer has joined again is lost: that is only noticed. So it is said again."""
            alice.patch(f"conversations/{where.pk}/", {"title": "Heard again"})
            return tab.hears("conversation.updated")

        eventually(hears, 20)


def test_while_postgres_is_away_a_send_is_refused_and_can_be_repeated(start_web: StartWeb) -> None:
    web = start_web()
    factories.server()
    where = factories.conversation(factories.person("alice"))
    same = str(uuid.uuid4())
    with web.person().tab(where) as tab:
        with no_postgres():
            tab.send("send", conversation=str(where.pk), client_id=same, text="Once", parent=None)
            refused = tab.error(timeout=20)
            assert (refused["code"], refused["retryable"], refused["client_id"]) == ("unavailable", True, same)

        def sent() -> bool:
            tab.send("send", conversation=str(where.pk), client_id=same, text="Once", parent=None)
            while (frame := tab.next(20))["type"] not in ("error", "message.created"):
                pass
            return bool(frame["type"] == "message.created")

        eventually(sent, 30, every=0.2)
        assert Generation.objects.count() == 1
        claim = worker.claimed()
        worker.publish(claim, "Here ", "again")
        worker.finish(claim)
        read_until_done(tab, claim)
        assert tab.shown[str(claim.generation)] == "Here again"


def test_an_answer_under_way_is_complete_after_a_restart_of_postgres(start_web: StartWeb) -> None:
    web = start_web()
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    worker.publish(claim, "before ")
    with web.person().tab(where) as tab:
        with no_postgres():
            assert tab.quiet(4), "a reader is not told of it: the text pauses"
        eventually(lambda: worker.look(claim), 20)
        factories.wrote(claim, "after")
        read_until(tab, claim, "before after")
        worker.finish(claim)
        read_until_done(tab, claim)


def test_who_comes_while_postgres_is_away_is_let_in_when_it_is_back(start_web: StartWeb) -> None:
    web = start_web()
    alice = web.person()
    with no_postgres():
        by_cookie = connect(web.socket_address, additional_headers={"Cookie": f"sessionid={alice.token}"}, legacy=True)
        by_token = connect(web.socket_address, legacy=True)
        tabs = Tab(by_cookie), Tab(by_token)
        tabs[1].send("auth", token=alice.token)
        for tab in tabs:
            refused = tab.error(timeout=20)
            assert (refused["code"], refused["retryable"]) == ("unavailable", True)
    for tab in tabs:
        assert tab.until("ready", 30)["person"]["username"] == "alice"
    by_cookie.close()
    by_token.close()
