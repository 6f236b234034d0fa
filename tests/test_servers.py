"""Which servers there are, as LLAMA_SERVERS changes and processes come and go behind an address."""

import threading

import pytest
from django.db import connection
from pytest_django import Settings

from slots import servers
from slots.models import Server
from slots.watch import Watch
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.grading import tried

pytestmark = pytest.mark.django_db


def listed(settings: Settings, *urls: str) -> Server:
    """The server first listed, after a worker started with these, looked at it and tried it."""
    settings.LLAMA_SERVERS = list(urls)
    servers.register()
    return tried(Server.objects.get(url=urls[0]).url)


def test_a_server_that_is_listed_under_another_name_is_used_under_that(
    settings: Settings, fake_llama: FakeLlama
) -> None:
    before = listed(settings, fake_llama.url)
    now = listed(settings, fake_llama.url.replace("127.0.0.1", "localhost"))
    assert (now.state, now.trouble) == ("ready", "")
    before.refresh_from_db()
    assert (before.state, before.boot) == ("retired", None)


@pytest.mark.django_db(transaction=True)
def test_a_server_that_hangs_does_not_keep_the_others_from_being_used(
    settings: Settings, fake_llama: FakeLlama
) -> None:
    with FakeLlama() as hanging:
        hanging.set(slots_fault="silent")
        settings.LLAMA_SERVERS = [hanging.url, fake_llama.url]
        servers.register()
        watch = Watch()

        def round_of_its_own() -> None:
            watch.round()
            connection.close()

        looking = threading.Thread(target=round_of_its_own)
        looking.start()
        eventually(lambda: watch.reachable, 4)
        assert looking.is_alive()
        assert Server.objects.get(pk__in=watch.reachable).url == fake_llama.url
        looking.join()


def test_a_server_that_is_listed_again_is_used_again(settings: Settings, fake_llama: FakeLlama) -> None:
    first = listed(settings, fake_llama.url)
    listed(settings, "http://127.0.0.1:9")
    again = listed(settings, fake_llama.url)
    assert (again.pk, again.state, again.boot) == (first.pk, "ready", first.boot)


def test_a_server_too_old_to_name_its_process_may_be_restarted_with_other_figures_and_back(
    settings: Settings, fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_boot", lambda server, props: f"unmarked {server.url}")
    for slots, n_ctx in ((4, 2048), (2, 2048), (4, 2048), (4, 512)):
        fake_llama.options.slots, fake_llama.options.n_ctx = slots, n_ctx
        fake_llama.restart()
        server = listed(settings, fake_llama.url)
        assert (server.trouble, server.total_slots, server.n_ctx) == ("", slots, n_ctx)
        assert server.slots.filter(condition="ready").count() == slots
