"""Waits of the asyncio client that are ended in the middle, by a cancellation or by closing what they wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bk_core import aio
from bk_core.aio import reading
from bk_core.errors import ClientClosedError
from bk_core.protocol.limits import Limits
from tests.unit.aio.loops import eventually, run, stalled

QUICK = Limits(explicit_lac_ns=5_000_000)  # readers hear soon of the last entry


def test_a_read_that_is_closed_in_the_middle_is_no_end(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bookie answers behind the beginning of the first range."""
    listen, gates = reading.LogReader._listen, []

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append_many([b"0", b"1", b"2"])

            def listening(reader: Any, stream: Any) -> None:
                gates.append(stalled(client))
                listen(reader, stream)

            monkeypatch.setattr(reading.LogReader, "_listen", listening)
            reader = log.reader()

            async def read() -> list[Any]:
                return [run async for run in reader.read()]

            found = asyncio.create_task(read())
            await eventually(lambda: gates)
            closing = asyncio.create_task(reader.close())
            with pytest.raises(ClientClosedError, match="the reader of log 'a' was closed by this program"):
                await found
            gates[0].set()
            await closing

    run(main)


@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_a_cancellation_in_the_turn_of_the_news_is_one(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, await opened(client, kind) as writer:
            acknowledged = await writer.append_future(b"x")
            waits = asyncio.create_task(waited(acknowledged))
            await eventually(lambda: acknowledged._waiters)
            waits.cancel()
            acknowledged._wake()  # before the task runs again
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert waits.cancelled()

    async def waited(acknowledged: Any) -> None:
        await acknowledged._news()

    run(main)


async def opened(client: aio.BookKeeper, kind: str) -> Any:
    return await client.create_ledger() if kind == "ledger" else await (await client.create_log("a", entry_format="raw")).writer()
