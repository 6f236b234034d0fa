"""Whether the site says truly how it is."""

import time
from datetime import timedelta

import pytest
import requests
from django.db.models import F

from conversations import telling
from conversations.models import Telling
from slots.models import Server
from tests import factories
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.outages import hanging_valkey, no_postgres
from tests.stack import StartProcess
from tests.web import StartWeb, Web

pytestmark = pytest.mark.django_db(transaction=True)


def get(web: Web, path: str) -> requests.Response:
    return requests.get(f"{web.address}{path}", timeout=10)


def test_a_whole_site_is_ready(web: Web) -> None:
    assert get(web, "/healthz").json() == {"ok": True}
    ready = get(web, "/readyz")
    assert ready.status_code == 200
    assert ready.json()["parts"] == {
        "database": {"ok": True, "detail": "usable"},
        "channel_layer": {"ok": True, "detail": "usable"},
    }


def test_servers_count_only_when_asked_for(web: Web) -> None:
    assert get(web, "/readyz").status_code == 200
    asked = get(web, "/readyz?servers=1")
    assert asked.status_code == 503
    assert asked.json()["parts"]["servers"] == {
        "ok": False,
        "detail": "No model server is configured: set LLAMA_SERVERS.",
    }
    assert asked.json()["parts"]["worker"] == {"ok": False, "detail": telling.NO_WORKER}
    factories.server()
    assert get(web, "/readyz?servers=1").json()["parts"]["servers"] == {"ok": True, "detail": "usable: 1 full"}
    other = factories.server(url="http://other.test:8080")
    Server.objects.filter(pk=other.pk).update(grade="one_at_a_time")
    assert get(web, "/readyz?servers=1").json()["parts"]["servers"]["detail"] == "usable: 1 full, 1 one at a time"
    Server.objects.filter(pk=other.pk).update(state="unusable", grade="unusable", costs="Isolation is broken.")
    detail = "usable: 1 full. http://other.test:8080 is out of service: Isolation is broken."
    assert get(web, "/readyz?servers=1").json()["parts"]["servers"]["detail"] == detail
    Server.objects.update(trouble="http://llama.test:8080 does not answer.")
    assert "does not answer" in get(web, "/readyz?servers=1").json()["parts"]["servers"]["detail"]


def test_a_worker_with_nothing_to_do_gives_a_sign_of_life(web: Web, start_worker: StartProcess) -> None:
    with FakeLlama() as server:
        worker = start_worker(LLAMA_SERVERS=server.url)
        eventually(lambda: get(web, "/readyz?servers=1").status_code == 200, 20)
        worker.kill()
        Telling.objects.update(until=F("until") - timedelta(seconds=telling.GONE_SECONDS + telling.SECONDS))
        assert get(web, "/readyz?servers=1").json()["parts"]["worker"]["detail"] == telling.NO_WORKER


def test_without_valkey_it_is_alive_and_says_what_is_missing(start_web: StartWeb) -> None:
    web = start_web(REDIS_URL="unix:///nowhere/valkey.sock")
    assert get(web, "/healthz").status_code == 200
    ready = get(web, "/readyz")
    assert ready.status_code == 503
    parts = ready.json()["parts"]
    assert parts["database"]["ok"] is True
    assert parts["channel_layer"]["ok"] is False
    assert "events are late" in parts["channel_layer"]["detail"]


def test_a_valkey_that_hangs_is_found_out_in_time(web: Web) -> None:
    with hanging_valkey():
        began = time.monotonic()
        ready = get(web, "/readyz")
        assert ready.status_code == 503
        assert "no answer within 2 s" in ready.json()["parts"]["channel_layer"]["detail"]
        assert time.monotonic() - began < 3
    eventually(lambda: get(web, "/readyz").status_code == 200, 15)


def test_without_postgres_it_is_alive_and_says_so_in_time(start_web: StartWeb) -> None:
    web = start_web()
    with no_postgres():
        began = time.monotonic()
        ready = get(web, "/readyz?servers=1")
        assert ready.status_code == 503
        assert ready.json()["parts"]["database"]["ok"] is False
        assert ready.json()["parts"]["channel_layer"]["ok"] is True
        assert time.monotonic() - began < 3
        assert get(web, "/healthz").status_code == 200
    eventually(lambda: get(web, "/readyz").status_code == 200, 30)
