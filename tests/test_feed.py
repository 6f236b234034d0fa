"""What keeps a feed hearing, and what tells it that it may have missed something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels_redis.pubsub import RedisSingleShardConnection

from conversations import events
from conversations.frames import Frame


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(events, "PULSE_SECONDS", 0.05)


@asynccontextmanager
async def listening() -> AsyncIterator[events.Feed]:
    """As a process that ends, this waits until the pulse is gone, too."""
    async with events.Feed() as feed:
        yield feed
    if events._pulse:
        await asyncio.wait_for(events._pulse, 5)


@pytest.mark.parametrize("half_made", [AttributeError("'NoneType' object has no attribute 'writelines'"), RuntimeError])
async def test_a_feed_whose_connection_was_being_made_anew_hears(
    monkeypatch: pytest.MonkeyPatch, half_made: Exception
) -> None:
    """Met by 1 socket in 2,000 that came while Valkey was restarted: it heard nothing as long as it lived."""
    subscribe, tries = RedisSingleShardConnection.subscribe, iter(range(100))

    async def fails_at_first(shard: Any, channel: str) -> None:
        if next(tries) < 4:
            raise half_made
        await subscribe(shard, channel)

    monkeypatch.setattr(RedisSingleShardConnection, "subscribe", fails_at_first)
    async with listening() as feed:
        await feed.join("somebody")
        async with asyncio.timeout(5):
            heard: list[Frame] = []
            while {"type": "said"} not in heard:
                await events._send_to("somebody", [{"type": "said"}])
                await feed.wait_at_most(0.1)
                heard += feed.take()[0]


async def test_who_comes_while_the_pulse_is_put_away_is_told_of_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    leave, send = events.Feed.leave, events._send_to
    leaving, go_on, lose = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(feed: events.Feed, group: str) -> None:
        if group.startswith("pulse."):
            leaving.set()
            await go_on.wait()
        await leave(feed, group)

    async def lossy(group: str, frames: list[Frame]) -> None:
        if lose.is_set():
            lose.clear()
            return
        await send(group, frames)

    monkeypatch.setattr(events.Feed, "leave", slowly)
    monkeypatch.setattr(events, "_send_to", lossy)
    async with events.Feed() as last:
        await last.join("somebody")
    await asyncio.wait_for(leaving.wait(), 5)
    async with listening() as feed:
        go_on.set()
        async with asyncio.timeout(5):
            missed = False
            while not missed:
                lose.set()
                await feed.wait_at_most(0.2)
                missed = feed.take()[1]
