"""Fixtures of the browser tests. `site` is where they run."""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from django.db import connections
from playwright.sync_api import Browser

from tests.browser.chromium import Chromium, running_chromium
from tests.browser.site import Site
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess
from tests.web import LAN_NAME, Web


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each step of a test may take its time on a busy machine, and there are many in one."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Chromium]:
    with running_chromium() as chromium:
        yield chromium


@pytest.fixture
def driven(web: Web, _chromium: Chromium, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """The browser, for one test."""
    # Playwright's loop counts as running while the test does, and to Django that is asynchronous code: it refuses the
    # ORM there unless told not to, and has other connections for it.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with _chromium.in_use() as browser:
        yield browser
        connections.close_all()


@pytest.fixture
def host() -> str:
    """Where a page can do less. Tests of what differs are `everywhere` (tests.browser.site)."""
    return LAN_NAME


@pytest.fixture
def site(
    host: str, web: Web, start_worker: StartProcess, fake_llama: FakeLlama, driven: Browser
) -> Iterator[Site]:  # fmt: skip
    """The site and nobody there yet: a test fails when one of its pages does what no page may do."""
    with Site(host, web, driven, start_worker, fake_llama) as site:
        yield site
        problems = site.problems
    assert not problems


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its pages looked like and what its processes said."""
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if call.when == "call" and report.failed and site is not None:
        report.sections += _left_over(site)
    return report


def _left_over(site: Site) -> Iterator[tuple[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="chatbackend-browser-"))
    for name, visitor in site.visitors.items():
        for number, page in enumerate(visitor.context.pages):
            picture = folder / f"{name}-{number}.png"
            page.screenshot(path=picture)
            yield f"{name} at {page.url}: {picture}", "\n".join(visitor.watch.console)
    for process in (site.web.process, *site.workers):
        yield f"process {process.pid}", process.output()[-4000:]
