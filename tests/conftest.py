from collections.abc import Iterator

import pytest
from django.core.cache import cache

pytest_plugins = ["tests.nursery", "tests.llama", "tests.stack", "tests.web"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the real llama-server runs in one process, one after the other: two would share the cores."""
    for item in items:
        if item.get_closest_marker("llama"):
            item.add_marker(pytest.mark.xdist_group("llama"))


@pytest.fixture
def no_limits_from_before() -> Iterator[None]:
    """For tests that sign in or up often: allauth counts tries in the cache, which is the same for all tests."""
    cache.clear()
    yield
    cache.clear()
