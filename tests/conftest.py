from collections.abc import Iterator

import pytest
from django.core.cache import cache

pytest_plugins = ["tests.nursery", "tests.llama", "tests.stack", "tests.web"]


# Fixtures of one module that take long: made twice, where two processes share its tests.
MADE_ONCE = ("up", "up_for_all", "stopped", "once_installed")
# Tests of half a minute: were they the last ones, as their names say, one process would wait for the other's.
FIRST = ("test_up.py", "test_install.py", "test_whole_stack.py", "test_worker_crashes.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the real llama-server runs in one process, one after the other: two would share the cores."""
    items.sort(key=lambda item: item.path.name not in FIRST)
    for item in items:
        needed = [name for name in MADE_ONCE if name in getattr(item, "fixturenames", ())]
        group = "llama" if item.get_closest_marker("llama") else next(iter(needed), None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def no_limits_from_before() -> Iterator[None]:
    """For tests that sign in or up often: allauth counts tries in the cache, which is the same for all tests."""
    cache.clear()
    yield
    cache.clear()
