"""The progress of one call, against a client that is as slow or as broken as a test wants."""

from __future__ import annotations

import asyncio
import logging

import pytest

pytest.importorskip("mcp_types", reason="the extra mcp is not installed: pip install 'workflow-orchestrator[mcp]'")

from orchestrator.mcp import ProgressFeed
from orchestrator.tool import ProgressView, TextContent
from tests.conftest import run_async


def view(text: str, finished: int | None = None) -> ProgressView:
    return ProgressView(content=(TextContent(text),), finished=finished)


class SlowClient:
    """Takes a notification when it is let."""

    def __init__(self) -> None:
        self.got: list[tuple[float, str | None]] = []
        self.arrived = asyncio.Event()
        self.let = asyncio.Semaphore(0)

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.arrived.set()
        await self.let.acquire()
        self.got.append((progress, message))


def test_while_a_client_is_slow_only_the_latest_view_waits() -> None:
    async def main() -> None:
        client = SlowClient()
        feed = ProgressFeed(client, interval=0)
        feed.put(view("first", 0))
        await client.arrived.wait()
        for number in range(1, 1000):
            feed.put(view(f"view {number}", number))
        client.let.release()
        client.let.release()
        await feed.finish()
        assert client.got == [(0, "first"), (999, "view 999")]

    run_async(main())


def test_views_with_the_same_count_still_have_growing_numbers_below_the_next_count() -> None:
    async def main() -> None:
        client = SlowClient()
        feed = ProgressFeed(client, interval=0)
        for count in (2, 2, 2, None, 1, 3):
            client.arrived.clear()
            feed.put(view("x", count))
            await client.arrived.wait()
            client.let.release()
        await feed.finish()
        numbers = [number for number, _ in client.got]
        assert numbers == sorted(set(numbers))
        assert [int(number) for number in numbers] == [2, 2, 2, 2, 2, 3]

    run_async(main())


def test_a_view_that_does_not_change_is_sent_again_for_hosts_that_count_on_signs_of_life() -> None:
    async def main() -> None:
        client = SlowClient()
        feed = ProgressFeed(client, interval=0, heartbeat=0.01)
        feed.put(view("long work", 4))
        for _ in range(3):
            client.let.release()
            client.arrived.clear()
            await client.arrived.wait()
        await feed.abandon()
        assert [message for _, message in client.got[:2]] == ["long work"] * 2
        assert 4 == client.got[0][0] < client.got[1][0] < 5

    run_async(main())


def test_nothing_is_sent_after_the_end_and_nothing_without_a_view() -> None:
    async def main() -> None:
        client = SlowClient()
        quiet = ProgressFeed(client, interval=0, heartbeat=0.01)
        await quiet.finish()
        feed = ProgressFeed(client, interval=1000)
        feed.put(view("stuck"))
        await client.arrived.wait()
        await feed.abandon()
        feed.put(view("late"))
        await feed.finish()
        assert client.got == []

    run_async(main())


def test_a_client_that_cannot_be_told_costs_the_call_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def broken(*_: object) -> None:
            raise ConnectionError("gone")

        feed = ProgressFeed(broken, interval=0)
        feed.put(view("a"))
        await feed.finish()

    with caplog.at_level(logging.WARNING):
        run_async(main())
    assert "could not be sent" in caplog.text
