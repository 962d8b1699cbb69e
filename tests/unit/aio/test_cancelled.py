"""Cancellation at every await point of every call, one after the other, while it waits there and when what it waits for has just come.

After each the handle works on, nothing hangs, nothing is counted that is not there, what was acknowledged is there once and in order, and
the loop has nothing to complain of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bk_core import aio
from bk_core.errors import ClientClosedError, LedgerExistsError, NoSuchLogError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from tests.unit.aio.loops import eventually, everywhere, run, stalled
from tests.unit.aio.test_aio import contents, open_writer

WHEN = pytest.mark.parametrize("late", [False, True], ids=["waiting", "come"])
SMALL = {"outstanding_bytes_max": 10}


def is_idle(client: aio.BookKeeper) -> bool:
    """True if nothing is done aside."""
    return all(pool._idle == len(pool._threads) for pool in (client._aside.pool, client._aside.lasting))


def numbered(found: list[bytes], acknowledged: list[bytes]) -> None:
    """Acknowledged ones in order and once; of others each once at most."""
    assert len(set(found)) == len(found)
    known = set(acknowledged)
    assert [payload for payload in found if payload in known] == acknowledged


@WHEN
@pytest.mark.parametrize("how", ["append", "append_many", "append_future", "append_many_future"])
@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_an_append_is_there_or_not(uri: str, kind: str, how: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=Limits(pending_bytes_max=10)) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else SMALL))
            acknowledged: list[bytes] = []

            async def append(point: int) -> None:
                go_on = stalled(client)
                full = b"full %05d" % point
                await writer.append_future(full)  # so that there is a wait for room
                asyncio.get_running_loop().call_later(0.02, go_on.set)
                payload = b"struck %d" % point
                try:
                    done = await getattr(writer, how)([payload] if "many" in how else payload)
                    if "future" in how:
                        await done
                except asyncio.CancelledError:
                    payload = b""
                    raise
                finally:
                    go_on.set()
                    acknowledged.extend((full, payload) if payload else (full,))

            async def after(point: int, _cancelled: bool) -> None:
                await writer.flush()
                await writer.append(b"after %d" % point)
                acknowledged.append(b"after %d" % point)
                assert writer._appends.outstanding == 0 and not writer._appends._due

            assert await everywhere(append, after, late=late) >= 1
            await writer.close()
            numbered(await contents(client, writer), acknowledged)

    run(main)


@WHEN
def test_a_long_run_is_there_whole_or_not_at_all(uri: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=Limits(unretired_entries_max=200)) as client:
            async with client.create_ledger() as ledger:
                await everywhere(
                    lambda point: ledger.append_many([b"%d" % point] * 500), lambda point, _: ledger.append(b"after"), late=late
                )
            async with client.open_ledger(ledger.ledger_id) as reader:
                found = await reader.read(0, reader.last_add_confirmed)
            for payload in {*found} - {b"after"}:
                first = found.index(payload)
                assert found[first : first + 500] == [payload] * 500 and found.count(payload) == 500

    run(main)


@WHEN
@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_a_flush_and_a_close_may_be_made_again(uri: str, kind: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:
            writers: list[Any] = []

            async def close(point: int) -> None:
                writer = await open_writer(client, kind)
                writers.append(writer)
                later = [await writer.append_future(b"%d" % n) for n in range(50)]
                await writer.flush()
                assert all(one.done() for one in later)
                await writer.append_future(b"50")
                await writer.close()

            async def after(_point: int, _cancelled: bool) -> None:
                if writers:
                    writer = writers.pop()
                    await writer.close()
                    metadata = await client.ledger_metadata(writer.ledger_id)
                    assert metadata.state is LedgerState.CLOSED

            assert await everywhere(close, after, late=late) >= 3

    run(main)


@WHEN
def test_a_ledger_that_nobody_waits_for_is_deleted_again(uri: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:

            async def create(_point: int) -> None:
                async with client.create_ledger(ledger_id=7) as ledger:
                    entered.set()
                    await ledger.append(b"x")

            async def after(_point: int, _cancelled: bool) -> None:
                if entered.is_set():  # then it is the caller's, and closed
                    await eventually(lambda: is_idle(client))
                    while (await client.ledger_metadata(7)).state is not LedgerState.CLOSED:
                        await asyncio.sleep(0.001)
                    await client.delete_ledger(7)
                    entered.clear()
                while True:  # the thread that made it deletes it
                    try:
                        ledger = await client.create_ledger(ledger_id=7)
                        break
                    except LedgerExistsError:
                        await asyncio.sleep(0.001)
                await ledger.close()
                await client.delete_ledger(7)

            entered = asyncio.Event()

            assert await everywhere(create, after, late=late) >= 2
            assert await client.list_ledgers() == []

    run(main)


@WHEN
def test_what_was_opened_for_nobody_is_closed_again(uri: str, late: bool) -> None:
    """A writer of a log would keep everybody else out."""

    async def main() -> None:
        async with aio.connect(uri) as client:
            log = await client.create_log("a", entry_format="raw")

            async def write(_point: int) -> None:
                async with log.writer(take_over=True) as writer:
                    await writer.append(b"x")

            async def after(_point: int, _cancelled: bool) -> None:
                await eventually(lambda: is_idle(client))
                async with log.writer(take_over=True) as writer:
                    await writer.append(b"after")

            assert await everywhere(write, after, late=late) >= 2

            async def read(_point: int) -> None:
                for segment in await log.segments():
                    async with client.open_ledger(segment.ledger_id) as ledger:
                        await ledger.read_last_add_confirmed()

            async def nothing(_point: int, _cancelled: bool) -> None:
                assert await client.logs() == ["a"]

            assert await everywhere(read, nothing, late=late) >= 3

    run(main)


@WHEN
@pytest.mark.parametrize("follows", [False, True])
def test_no_run_is_lost_and_none_comes_twice(uri: str, follows: bool, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer(roll_max_entries=5) as writer:
                for n in range(20):
                    await writer.append(b"%d" % n)

            async def reading(found: list[bytes], reader: aio.LogReader) -> None:
                async for part in reader.follow() if follows else reader.read():
                    found.extend(part.payloads())
                    if len(found) == 20 and follows:
                        return

            state: dict[str, Any] = {}

            async def begin(_point: int) -> None:
                state["reader"], state["found"] = log.reader(), []
                await reading(state["found"], state["reader"])

            async def after(_point: int, _cancelled: bool) -> None:
                if len(state["found"]) < 20:
                    await reading(state["found"], state["reader"])
                assert state["found"] == [b"%d" % n for n in range(20)]
                await state["reader"].close()

            assert await everywhere(begin, after, late=late) >= 5

    run(main)


@WHEN
def test_the_next_writer_waits_for_one_that_was_given_up(uri: str, late: bool) -> None:
    """It is closed aside, and the log looks written until then."""

    async def main() -> None:
        async with aio.connect(uri) as client:
            log = await client.create_log("events", entry_format="raw")

            async def begin(_point: int) -> None:
                writer = await log.writer()
                writer.abandon()

            async def after(_point: int, _cancelled: bool) -> None:
                async with log.writer() as writer:
                    await writer.append(b"next")
                assert not client._leaving

            assert await everywhere(begin, after, late=late) >= 1

    run(main)


@WHEN
def test_a_tail_goes_on_after_a_cancellation(uri: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:
            async with client.create_ledger() as ledger:
                await ledger.append_many([b"%d" % n for n in range(100)])
            async with client.open_ledger(ledger.ledger_id) as reader:
                state: dict[str, Any] = {}

                async def reading() -> None:
                    async for part in state["runs"]:
                        state["found"].extend(part.payloads())

                async def begin(_point: int) -> None:
                    state["runs"], state["found"] = reader.tail(), []
                    await reading()

                async def after(_point: int, _cancelled: bool) -> None:
                    await reading()
                    assert state["found"] == [b"%d" % n for n in range(100)]

                assert await everywhere(begin, after, late=late) >= 1

    run(main)


@WHEN
@pytest.mark.parametrize("what", ["create", "set", "trim", "gc", "delete", "info"])
def test_a_change_of_a_log_is_made_or_not(uri: str, what: str, late: bool) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:
            calls: dict[str, Callable[[aio.Log, int], Awaitable[Any]]] = {
                "create": lambda log, point: client.create_log(f"new{point}", entry_format="raw"),
                "set": lambda log, point: log.set(retention_bytes=point + 1),
                "trim": lambda log, point: log.trim(max_bytes=0),
                "gc": lambda log, point: log.gc(),
                "delete": lambda log, point: log.delete(),
                "info": lambda log, point: log.info(),
            }
            log = await client.create_log("a", entry_format="raw")

            async def after(_point: int, _cancelled: bool) -> None:
                await eventually(lambda: is_idle(client))
                await client.create_log("a", entry_format="raw", exist_ok=True)
                for name in await client.logs():
                    await (await client.log(name)).info()

            assert await everywhere(lambda point: calls[what](log, point), after, late=late) >= 1

    run(main)


@WHEN
def test_a_client_that_nobody_waits_for_is_closed_again(uri: str, late: bool) -> None:
    async def main() -> None:
        async def connect(_point: int) -> None:
            async with aio.connect(uri) as client:
                with pytest.raises(NoSuchLogError):
                    await client.log("none")

        async def after(_point: int, _cancelled: bool) -> None:
            async with aio.connect(uri) as client:
                assert await client.logs() == []

        assert await everywhere(connect, after, late=late) >= 3

    run(main)


def test_a_close_of_a_client_that_is_cancelled_goes_on(uri: str) -> None:
    async def main() -> None:
        async def close(_point: int) -> None:
            client = await aio.connect(uri)
            clients.append(client)
            await client.close()

        async def after(_point: int, _cancelled: bool) -> None:
            for client in clients:
                await client.close()
                with pytest.raises(ClientClosedError):
                    await client.logs()
            clients.clear()

        clients: list[aio.BookKeeper] = []
        assert await everywhere(close, after) >= 2

    run(main)
