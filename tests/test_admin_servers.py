"""Servers in the admin: added, looked at, drained, put back, retired; on scripted llama-servers and real workers."""

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from slots import leases, orders, servers
from slots.client import ServerError
from slots.models import PastLease, Server, Slot
from tests import factories
from tests.administrators import KEY, administrator, messages, page, staff
from tests.answers import ended, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

ADD = page(Server, "add")
LIST = page(Server, "changelist")


def added(client: Client, url: str, key: str = "") -> Server:
    assert client.post(ADD, {"url": url, "api_key": key}).status_code == 302
    return Server.objects.get()


def refusal(client: Client, url: str) -> str:
    answer = client.post(ADD, {"url": url, "api_key": ""})
    assert answer.status_code == 200
    return str(answer.context["adminform"].form.errors["url"][0])


def test_a_server_is_looked_at_when_it_is_added(fake_llama: FakeLlama) -> None:
    client = administrator()
    server = added(client, f"{fake_llama.url}/")
    assert (server.url, server.state, server.total_slots, server.from_environment) == (
        fake_llama.url,
        "probing",
        4,
        False,
    )
    assert any("answers: " in said and "4 places of 2,048 tokens" in said for said in messages(client, LIST))
    assert LogEntry.objects.get().object_repr == fake_llama.url


def test_a_server_that_does_not_answer_is_added_and_says_why_it_is_not_usable() -> None:
    client = administrator()
    server = added(client, "http://127.0.0.1:9")
    assert server.state == "unknown"
    assert any("Not usable yet" in said and "127.0.0.1:9" in said for said in messages(client, LIST))
    html = client.get(page(Server, "change", server.pk)).content.decode()
    assert "Not usable" in html
    assert server.trouble.split(":")[0] in html


def test_an_address_that_is_none_is_refused_with_what_would_be_right() -> None:
    client = administrator()
    assert "meant was probably http://10.0.0.7:8080" in refusal(client, "10.0.0.7:8080")
    assert "http://:KEY@host:8080" in refusal(client, "ftp://10.0.0.7")
    assert "http://:KEY@host:8080" in refusal(client, "http://host:port")
    assert "http://:KEY@host:8080" in refusal(client, "http://[::1")
    assert KEY not in refusal(client, f"ftp://:{KEY}@10.0.0.7")
    assert not Server.objects.exists()


def test_one_server_cannot_be_added_twice_under_another_spelling() -> None:
    factories.server(url="http://llama.test:8080")
    assert "already exists" in refusal(administrator(), "http://LLAMA.test:8080/")


def test_the_key_is_stored_and_never_shown_again() -> None:
    with FakeLlama(api_key=KEY) as protected:
        client = administrator()
        server = added(client, protected.url.replace("//", f"//:{KEY}@"))
        assert (server.url, server.api_key, server.state) == (protected.url, KEY, "probing")
        change = page(Server, "change", server.pk)
        for address in (LIST, change, page(Server, "history", server.pk), "/admin/"):
            assert KEY not in client.get(address).content.decode()
        assert client.post(change, {"api_key": ""}).status_code == 302
        assert Server.objects.get().api_key == KEY
        client.post(change, {"api_key": "wrong"})
        assert Server.objects.get().api_key == "wrong"
        assert any("Not usable yet" in said for said in messages(client, LIST))
        client.post(change, {"api_key": "", "without_key": "on"})
        assert Server.objects.get().api_key == ""


def test_saving_an_old_page_rolls_nothing_back() -> None:
    server = factories.server(2)
    grant = factories.leased(server)
    client = administrator()
    Server.objects.filter(pk=server.pk).update(state="draining", trouble="something", n_ctx=4096)
    client.post(page(Server, "change", server.pk), {"api_key": KEY, "state": "ready", "url": "http://evil.test"})
    row = Server.objects.get()
    assert (row.url, row.state, row.n_ctx, row.api_key) == ("http://llama.test:8080", "draining", 4096, KEY)
    assert Slot.objects.get(pk=grant.slot).fence == grant.fence


def test_of_a_server_of_the_environment_neither_key_nor_use_is_decided_here() -> None:
    server = factories.server()
    Server.objects.update(from_environment=True, api_key=KEY)
    client = administrator()
    assert "New API key" not in client.get(page(Server, "change", server.pk)).content.decode()
    refused = client.post(page(Server, "change", server.pk), {"api_key": "other"})
    assert refused.status_code == 403
    assert "LLAMA_SERVERS decides the key" in refused.content.decode()
    assert Server.objects.get().api_key == KEY
    client.post(page(Server, "retire", server.pk))
    assert Server.objects.get().state == "ready"
    assert any("LLAMA_SERVERS lists" in said for said in messages(client, LIST))
    with pytest.raises(orders.Refused):
        orders.change_key(server, "other")


def test_a_draining_server_finishes_what_runs_and_gets_nothing_new_until_it_is_put_back(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    client = administrator()
    server = added(client, fake_llama.url)
    start_worker()
    first = factories.sent(factories.conversation(), "One [[tokens=120 rate=60]]")
    written(first)
    client.post(page(Server, "drain", server.pk))
    assert Server.objects.get().state == "draining"
    second = factories.sent(factories.conversation(factories.person("bob")), "Two")
    assert ended(first).status == "done"
    second.generation.refresh_from_db()
    assert second.generation.status == "queued"
    client.post(page(Server, "serve", server.pk))
    assert ended(second).status == "done"
    assert {entry.change_message for entry in LogEntry.objects.all()} >= {"Drained.", "Put back into service."}


def test_a_retired_server_keeps_its_history_and_no_lease(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    client = administrator()
    server = added(client, fake_llama.url)
    start_worker()
    where = factories.conversation()
    ended(factories.sent(where, "Before"))
    eventually(lambda: Slot.objects.filter(holder=where.pk, phase="idle").exists())
    running = factories.sent(factories.conversation(factories.person("bob")), "Long [[tokens=100 rate=60]]")
    written(running)
    assert "1 answer under way" in client.get(page(Server, "retire", server.pk)).content.decode()
    client.post(page(Server, "retire", server.pk))
    assert not Slot.objects.filter(holder=where.pk).exists()
    assert PastLease.objects.filter(holder=where.pk).latest("fence").ended_by == "moved"
    assert ended(running).status == "done"
    eventually(lambda: not Slot.objects.filter(holder__isnull=False).exists(), what="the last lease to end")
    row = Server.objects.get()
    assert (row.state, row.boot) == ("retired", None)
    with FakeLlama() as other:
        Server.objects.create(url=other.url)
        again = ended(factories.sent(where, "After"))
    assert again.timings
    assert again.timings["replay_cause"] == "moved"


def test_a_retired_server_can_be_put_back_and_is_then_the_admin_s_own(fake_llama: FakeLlama) -> None:
    server = Server.objects.create(url=fake_llama.url, state="retired", from_environment=True)
    client = administrator()
    assert "put it back into service" in refusal(client, fake_llama.url)
    client.post(page(Server, "look", server.pk))
    assert Server.objects.get().state == "retired"
    client.post(page(Server, "serve", server.pk))
    row = Server.objects.get()
    assert (row.state, row.from_environment) == ("probing", False)
    servers.register()
    assert Server.objects.get().state == "probing"


def test_a_look_that_was_under_way_does_not_bring_a_retired_server_back(fake_llama: FakeLlama) -> None:
    server = Server.objects.create(url=fake_llama.url)
    Server.objects.filter(pk=server.pk).update(state="retired")
    assert not servers.look(server)
    assert Server.objects.get().state == "retired"


def test_orders_are_given_to_several_at_once_and_only_by_post() -> None:
    first, second = factories.server(url="http://one.test"), factories.server(url="http://two.test")
    client = administrator()
    for name in ("look", "drain", "serve"):
        assert client.get(page(Server, name, first.pk)).status_code == 405
    chosen = {"_selected_action": [first.pk, second.pk]}
    client.post(LIST, {**chosen, "action": "drain"})
    assert set(Server.objects.values_list("state", flat=True)) == {"draining"}
    client.post(LIST, {**chosen, "action": "drain"})
    assert len([said for said in messages(client, LIST) if "nothing to drain" in said]) == 2
    asked = client.post(LIST, {**chosen, "action": "retire"})
    assert "Nothing is deleted" in asked.content.decode()
    client.post(LIST, {**chosen, "action": "retire", "confirmed": "yes"})
    assert set(Server.objects.values_list("state", flat=True)) == {"retired"}


def test_who_may_only_see_servers_gives_no_orders() -> None:
    server = factories.server()
    client = staff("slots.view_server")
    html = client.get(page(Server, "change", server.pk)).content.decode()
    assert "Drain" not in html
    assert "New API key" not in html
    for name in ("look", "drain", "serve", "retire"):
        assert client.post(page(Server, name, server.pk)).status_code == 403
    client.post(LIST, {"_selected_action": [server.pk], "action": "drain"})
    client.post(page(Server, "change", server.pk), {"api_key": KEY})
    row = Server.objects.get()
    assert (row.state, row.api_key) == ("ready", "")


def test_nothing_is_kept_warm_on_retired_servers() -> None:
    kept, left = factories.server(url="http://one.test"), factories.server(url="http://two.test")
    for server in (kept, left):
        factories.idle(server)
    busy = factories.leased(left)
    Server.objects.filter(pk=left.pk).update(state="retired")
    assert len(leases.leave_retired()) == 1
    assert Slot.objects.filter(server=kept, phase="idle").count() == 1
    assert Slot.objects.get(pk=busy.slot).fence == busy.fence


def test_a_server_that_refuses_is_no_reason_for_a_broken_page(fake_llama: FakeLlama) -> None:
    server = Server.objects.create(url=f"{fake_llama.url}/elsewhere")
    client = administrator()
    assert client.post(page(Server, "look", server.pk)).status_code == 302
    assert any("Not usable yet" in said for said in messages(client, LIST))
    with pytest.raises(ServerError):
        servers.client_of(server).props()
