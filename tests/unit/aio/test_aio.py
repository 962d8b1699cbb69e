"""The asyncio client against bookies on sockets in this process: what it does, what it waits for, and what its errors say."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bk_core import aio
from bk_core.aio.loops import THREADS
from bk_core.errors import (
    BkError,
    ClientClosedError,
    DuplicateEntryIdError,
    EventLoopError,
    InvalidArgumentError,
    LedgerExistsError,
    LedgerFencedError,
    LogDataLossError,
    LogExistsError,
    LogTakenOverError,
    NoClusterError,
    NoSuchLedgerError,
    NoSuchLogError,
    OperationTimeoutError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.position import Position
from tests.unit.aio.loops import PATIENCE_S, eventually, run, stalled

QUICK = Limits(explicit_lac_ns=5_000_000)  # readers hear soon of the last entry
SMALL = Limits(explicit_lac_ns=5_000_000, pending_bytes_max=10)
KINDS = ("ledger", "log")


async def open_writer(client: aio.BookKeeper, kind: str, **options: Any) -> Any:
    if kind == "ledger":
        return await client.create_ledger()
    log = await client.create_log("a", entry_format="raw", exist_ok=True)
    return await log.writer(take_over=True, **options)


async def contents(client: aio.BookKeeper, writer: Any) -> list[bytes]:
    if isinstance(writer, aio.LogWriter):
        return [payload async for run in (await client.log("a")).reader() for payload in run.payloads()]
    async with client.open_ledger(writer.ledger_id) as ledger:
        return await ledger.read(0, ledger.last_add_confirmed) if ledger.last_add_confirmed >= 0 else []


# --- ledgers and logs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_was_appended_is_there(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            writer = await open_writer(client, kind)
            async with writer:
                first = await writer.append(b"0")
                assert first == (0 if kind == "ledger" else Position(0, 0))
                await writer.append_many([b"1", b"2"])
                await writer.append_run(b"34", array("q", (0, 1, 2)))
                later = [
                    await writer.append_future(b"5"),
                    await writer.append_many_future([b"6", b"7"]),
                    await writer.append_run_future(b"89", array("q", (0, 1, 2))),
                ]
                await writer.flush()
                assert all(one.done() for one in later) and later[0].result() == await later[0]
                assert await asyncio.gather(*later) == [one.result() for one in later]
            assert await contents(client, writer) == [b"%d" % n for n in range(10)]

    run(main)


def test_what_is_not_open_yet_says_how_to_open_it(uri: str) -> None:
    async def main() -> None:
        opening: Any = aio.connect(uri, limits=QUICK)
        assert repr(opening) == "<Opening of connect(...): await it, or use async with>"
        async with opening as client:
            log = await client.create_log("events")
            for call, made in (
                ("client.create_ledger", client.create_ledger()),
                ("client.open_ledger", client.open_ledger(0)),
                ("client.recover_ledger", client.recover_ledger(0)),
                ("log.writer", log.writer()),
            ):
                assert repr(made) == f"<Opening of {call}(...): await it, or use async with>"
                with pytest.raises(AttributeError, match=rf"{call}\(...\) is not open yet and has no 'append': await it, or"):
                    made.append(b"x")
                with pytest.raises(TypeError, match=rf"{call}\(...\) is opened by `async with`, and not by `with`; or await it"), made:
                    pass
            assert await client.list_ledgers() == []  # nothing was made

    run(main)


def test_what_nobody_awaits_is_told(uri: str) -> None:
    """As of a coroutine. What was awaited, or told as a mistake already, is not told again."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            with pytest.warns(RuntimeWarning, match=r"^client.create_ledger\(...\) was never awaited, so nothing was opened$"):
                client.create_ledger()
            assert await client.list_ledgers() == []
            async with await client.create_ledger(), client.create_ledger():
                pass
            made: Any = client.create_ledger()
            with pytest.raises(AttributeError):
                made.append(b"x")

    run(main)


def test_ledgers_are_opened_followed_recovered_and_deleted(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, client.create_ledger(password=b"secret") as ledger:
            await ledger.append_many([b"%d" % n for n in range(5)])
            async with client.open_ledger(ledger.ledger_id, password=b"secret") as reader:
                assert (reader.is_closed, reader.length) == (False, None)
                assert await reader.wait_for(4, 30) and not await reader.wait_for(5, 0.01)
                assert await reader.read_unconfirmed(3, 4) == [b"3", b"4"] and await reader.try_read_last_add_confirmed() == 4
                await reader.refresh()
                assert await reader.read_last_add_confirmed() == reader.last_add_confirmed == 4
                found: list[bytes] = []

                async def follow() -> None:
                    async for part in reader.tail():
                        found.extend(part.payloads())

                following = asyncio.create_task(follow())
                for n in range(5, 9):
                    await ledger.append(b"%d" % n)
                    await eventually(lambda n=n: len(found) == n + 1)
                assert (await ledger.close()).state is LedgerState.CLOSED
                await following
                assert found == [b"%d" % n for n in range(9)] == await reader.read(0, 8)
                assert [n async for part in reader.read_runs(3, 4) for n in part.payloads()] == [b"3", b"4"]
                with pytest.raises(InvalidArgumentError):
                    reader.read_runs(0, 9)
                with pytest.raises(InvalidArgumentError, match="entry 10 lies beyond the last entry 8"):
                    reader.tail(10)  # as the synchronous client says it, and no quiet end
                assert [part async for part in reader.tail(9)] == []
            lost = await client.create_ledger()
            await lost.append(b"x")
            lost.abandon()
            async with client.recover_ledger(lost.ledger_id) as recovered:
                assert await recovered.read(0, 0) == [b"x"]
            assert await client.list_ledgers() == [ledger.ledger_id, lost.ledger_id]
            assert (await client.ledger_metadata(lost.ledger_id)).state is LedgerState.CLOSED
            await client.delete_ledger(lost.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await client.open_ledger(lost.ledger_id)
            assert len((await client.bookies()).writable) == 3

    run(main)


def test_the_modes_of_ledgers_are_there(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            async with client.create_ledger(caller_ids=True) as chosen:
                second = await chosen.append_future(b"1", entry_id=1)
                assert await chosen.append(b"0", entry_id=0) == 0 and await second == 1
            async with client.create_ledger(deferred_sync=True) as deferred:
                await deferred.append(b"x")
                assert await deferred.force() == 0
                await deferred.append(b"y")
            assert (await client.ledger_metadata(deferred.ledger_id)).last_entry_id == 1
            forced = await client.create_ledger()
            await forced.append(b"x")
            assert (await forced.close(forced=True)).last_entry_id == 0

    run(main)


def test_a_log_is_made_looked_at_changed_and_deleted(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            with pytest.raises(LogExistsError):
                await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append_many([b"x"] * 3)
                await writer.roll()
                await writer.append(b"y")
                assert writer.position == Position(1, 1)
            info = await log.info()
            assert (info.segments, info.rows) == (2, 4) and await client.logs() == ["a"]
            assert (await log.set(retention_bytes=1)).retention_bytes == 1
            assert [segment.first_entry_id for segment in await log.segments()] == [0, 0]
            reader = log.reader(Position(1, 0))
            assert [part.payloads() async for part in reader.read()] == [[b"y"]] and reader.position == Position(2)
            assert len(await log.trim(before=Position(1))) == 1
            with pytest.raises(LogDataLossError):
                async for _ in log.reader(Position(0, 0)).read():
                    raise AssertionError
            assert (await log.check()).problems == () and await log.apply_retention() == ()
            await log.gc()
            await log.delete()
            with pytest.raises(NoSuchLogError):
                await client.log("a")

    run(main)


def test_what_is_opened_may_be_awaited_or_entered(uri: str) -> None:
    async def main() -> None:
        client = await aio.connect(uri)
        ledger = await client.create_ledger()
        await ledger.close()
        async with client.open_ledger(ledger.ledger_id) as entered:
            assert entered.is_closed
        await client.close()
        assert client.is_closed

    run(main)


def test_errors_are_those_of_the_other_client(uri: str) -> None:
    async def main() -> None:
        with pytest.raises(NoClusterError):
            await aio.connect("memory://nothing-here")
        with pytest.raises(InvalidArgumentError, match="there is no client setting 'ensemble_chang'"):
            await aio.connect(uri, ensemble_chang="delayed")  # type: ignore[call-arg]
        async with aio.connect(uri, limits=QUICK) as client:
            async with client.create_ledger(ledger_id=7) as ledger:
                with pytest.raises(InvalidArgumentError, match="payload must be bytes"):
                    await ledger.append("text")  # type: ignore[arg-type]
                with pytest.raises(InvalidArgumentError, match=r"payloads\[1\] must be bytes"):
                    await ledger.append_many_future([b"x", "text"])  # type: ignore[list-item]
                assert await ledger.append(b"x") == 0
            with pytest.raises(LedgerExistsError):
                await client.create_ledger(ledger_id=7)

    run(main)


# --- followers -------------------------------------------------------------------------------------------------------------


def test_a_follower_sees_every_entry_and_ends_with_its_reader(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            reader = log.reader()
            found: list[bytes] = []

            async def follow() -> str:
                async for part in reader.follow():
                    found.extend(part.payloads())
                return "ended"

            following = asyncio.create_task(follow())
            for turn in range(3):  # through rolls, and writers that come and go
                async with log.writer(roll_max_entries=4) as writer:
                    for n in range(10):
                        await writer.append(b"%d" % (10 * turn + n))
                await eventually(lambda turn=turn: len(found) == 10 * (turn + 1))
            await reader.close()
            assert await following == "ended"
            assert found == [b"%d" % n for n in range(30)]

    run(main)


def test_a_follower_that_waits_uses_no_thread(uri: str) -> None:
    """Many more follow than there are threads for what blocks; none of them holds one up."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            counts = [0] * (5 * THREADS)

            async def follow(number: int) -> None:
                async for part in log.reader().follow():
                    counts[number] += part.count

            following = [asyncio.create_task(follow(number)) for number in range(len(counts))]
            async with log.writer() as writer:
                await writer.append(b"x")
                await eventually(lambda: counts == [1] * len(counts))
                threads = threading.active_count()
                await writer.append(b"y")
                await eventually(lambda: counts == [2] * len(counts))
                assert threading.active_count() <= threads
            assert len(client._aside.pool._threads) <= THREADS
        await asyncio.gather(*following)  # the client was closed, which ends them

    run(main)


def test_an_iteration_with_a_timeout_loses_nothing(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            reader, found = log.reader(), []
            runs = reader.follow()
            async with log.writer() as writer:
                for n in range(30):
                    await writer.append(b"%d" % n)
                    while len(found) <= n:
                        try:
                            found += (await asyncio.wait_for(anext(runs), 0.001 if n % 2 else PATIENCE_S)).payloads()
                        except TimeoutError:
                            pass
            assert found == [b"%d" % n for n in range(30)]
            await reader.close()

    run(main)


def test_a_reader_that_was_dropped_holds_nothing(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append(b"x")
                reader = log.reader()
                async for _ in reader.follow():
                    break
                steps = reader._steps
                assert steps is not None and steps.watch is not None
                del reader
                gc.collect()
                await eventually(lambda: steps.watch is None and steps.ledger is None)

    run(main)


def test_a_read_that_is_closed_is_no_end(uri: str) -> None:
    """A finite read that ended quietly would look as if it had seen everything."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            reader = log.reader()
            await reader.close()
            with pytest.raises(ClientClosedError, match="the reader of log 'a' was closed by this program"):
                async for _ in reader.read():
                    raise AssertionError

    run(main)


def test_a_follower_is_told_that_its_log_is_gone(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")

            async def follow() -> None:
                async for _ in log.reader().follow():
                    raise AssertionError

            following = asyncio.create_task(follow())
            await asyncio.sleep(0)
            await log.delete()
            with pytest.raises(NoSuchLogError):
                await following

    run(main)


# --- room ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_runs_while_the_window_is_full(uri: str, kind: str) -> None:
    """Room is awaited: other tasks run, and everything is in the order of the calls in the end."""

    async def main() -> None:
        async with aio.connect(uri, limits=SMALL) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
            await writer.append(b"-")
            go_on = stalled(client)
            appending = [asyncio.create_task(writer.append(b"%d" % (100_000 + n))) for n in range(50)]
            turns = 0
            for _ in range(1000):  # turns of the loop, all of them while nothing is answered
                await asyncio.sleep(0)
                turns += not any(one.done() for one in appending)
            assert turns == 1000 and not go_on.is_set()
            go_on.set()
            places = await asyncio.gather(*appending)
            assert places == sorted(places)
            await writer.close()
            assert await contents(client, writer) == [b"-", *(b"%d" % (100_000 + n) for n in range(50))]

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_append_future_waits_for_room_and_no_more(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=SMALL) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
            go_on = stalled(client)
            first = await writer.append_future(b"0123456789")
            assert not first.done()
            with pytest.raises(asyncio.InvalidStateError):
                first.result()
            second = asyncio.create_task(writer.append_future(b"x"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not second.done()
            go_on.set()
            await (await second)
            assert first.done()
            await writer.close()

    run(main)


def test_long_runs_stay_whole_among_others(uri: str) -> None:
    """They go in pieces, handed in by the reactor, and nobody else's entries come between."""

    async def main() -> None:
        async with aio.connect(uri, limits=Limits(unretired_entries_max=500)) as client:
            async with client.create_ledger() as ledger:

                async def append(name: int, count: int) -> int:
                    return await ledger.append_many([b"%d" % name] * count)

                counts = [3000, 1, 2500, 7, 1, 1500]
                lasts = await asyncio.gather(*(append(name, count) for name, count in enumerate(counts)))
            async with client.open_ledger(ledger.ledger_id) as reader:
                found = await reader.read(0, reader.last_add_confirmed)
            for name, (count, last) in enumerate(zip(counts, lasts, strict=True)):
                assert found[last - count + 1 : last + 1] == [b"%d" % name] * count
            assert len(found) == sum(counts)

    run(main)


def test_a_long_run_that_waits_for_its_turn_may_be_cancelled(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=Limits(unretired_entries_max=500)) as client:
            async with client.create_ledger() as ledger:
                go_on = stalled(client)
                begun = asyncio.create_task(ledger.append_many([b"a"] * 3000))
                waiting = asyncio.create_task(ledger.append_many([b"b"] * 3000))
                behind = asyncio.create_task(ledger.append(b"c"))
                for _ in range(10):
                    await asyncio.sleep(0)
                begun.cancel()  # a piece of it is handed in, so it takes effect
                waiting.cancel()
                await asyncio.wait([begun, waiting])
                go_on.set()
                assert await behind == 3000
            async with client.open_ledger(ledger.ledger_id) as reader:
                assert await reader.read(0, reader.last_add_confirmed) == [b"a"] * 3000 + [b"c"]

    run(main)


def test_a_long_run_that_has_its_turn_and_no_room_may_be_cancelled(uri: str) -> None:
    """Its turn goes to the next one."""

    async def main() -> None:
        async with aio.connect(uri, limits=SMALL) as client, client.create_ledger() as ledger:
            go_on = stalled(client)
            filling = await ledger.append_future(b"0123456789")
            waiting = asyncio.create_task(ledger.append_many([b"a"] * 3000))
            while ledger._handle._share.turn is None:
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert ledger._handle._share.turn is None
            go_on.set()
            assert (await filling, await ledger.append(b"x")) == (0, 1)

    run(main)


def test_who_stands_behind_a_cancelled_append_is_let_in(uri: str) -> None:
    """There was room for it all the time, and no acknowledgement comes that would look."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            writer = await open_writer(client, "log", outstanding_bytes_max=10)
            go_on = stalled(client)
            await writer.append_future(b"01234")
            large = asyncio.create_task(writer.append(b"0123456789"))
            small = asyncio.create_task(writer.append_future(b"x"))
            await eventually(lambda: len(writer._writer._window.line) == 2 and writer._writer._own._idle)
            large.cancel()
            await small
            go_on.set()
            await writer.close()
            assert await contents(client, writer) == [b"01234", b"x"]

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_too_long_says_what_became_of_it(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=SMALL, operation_timeout_s=0.5) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
            go_on = stalled(client)
            sent = asyncio.create_task(writer.append(b"0123456789"))
            waits = asyncio.create_task(writer.append(b"x"))
            flushing = asyncio.create_task(writer.flush())
            with pytest.raises(OperationTimeoutError, match="did not finish within 0.5 s; it may still take effect"):
                await sent
            with pytest.raises(OperationTimeoutError, match="10 bytes stayed unacknowledged.* this run was not appended|not appended"):
                await waits
            with pytest.raises(OperationTimeoutError, match="appends stayed unacknowledged"):
                await flushing
            go_on.set()
            await writer.flush()
            await writer.close()
            assert await contents(client, writer) == [b"0123456789"]

    run(main)


# --- failures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_nobody_awaited_is_told_by_flush_and_close(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            for end in ("flush", "close", "with"):
                writer = await open_writer(client, kind)
                await writer.append(b"x")
                if kind == "ledger":
                    await client.recover_ledger(writer.ledger_id)
                else:
                    other = await open_writer(client, "log")
                expected: type[BkError] = LedgerFencedError if kind == "ledger" else LogTakenOverError
                with pytest.raises(expected):
                    if end == "with":
                        async with writer:
                            await writer.append_future(b"lost")
                    else:
                        await writer.append_future(b"lost")
                        await getattr(writer, end)()
                writer.abandon()
                if kind == "log":
                    await other.close()

    run(main)


def test_a_failure_that_was_awaited_is_told_once(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, client.create_ledger(caller_ids=True) as ledger:
            await ledger.append(b"0", entry_id=0)
            with pytest.raises(DuplicateEntryIdError):
                await ledger.append(b"0", entry_id=0)
            await ledger.flush()
            await ledger.append_future(b"0", entry_id=0)
            with pytest.raises(DuplicateEntryIdError):
                await ledger.flush()
            await ledger.flush()

    run(main)


# --- closing, loops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_closing_ends_everything_that_waits(uri: str, kind: str) -> None:
    async def main() -> None:
        client = await aio.connect(uri, limits=SMALL)
        writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
        log = await client.create_log("b", entry_format="raw")
        go_on = stalled(client)
        appending = [asyncio.create_task(writer.append(b"0123456789")) for _ in range(5)]
        flushing = asyncio.create_task(writer.flush())

        async def follow() -> None:
            async for _ in log.reader().follow():
                raise AssertionError

        following = [asyncio.create_task(follow()) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        threading.Timer(0.2, go_on.set).start()
        await client.close()
        await asyncio.gather(*following)
        for one in (*appending, flushing):
            with pytest.raises(ClientClosedError):
                await one
        for call in (writer.append(b"x"), client.logs(), client.create_ledger(), log.info()):
            with pytest.raises(ClientClosedError):
                await call
        await client.close()

    run(main)


def test_a_client_belongs_to_one_loop(uri: str) -> None:
    kept: list[Any] = []

    async def first() -> None:
        client = await aio.connect(uri)
        kept.extend((client, await client.create_ledger(), (await client.create_log("a", entry_format="raw")).reader()))
        await kept[1].append(b"x")

        async def elsewhere() -> None:
            for call in (kept[1].append(b"x"), client.logs(), anext(kept[2].follow()), kept[1].flush(), client.close()):
                with pytest.raises(EventLoopError, match="belongs to another event loop: connect a client in each loop"):
                    await call

        with ThreadPoolExecutor(1) as thread:
            await asyncio.wrap_future(thread.submit(asyncio.run, elsewhere()))

    async def second() -> None:
        client, ledger, reader = kept
        for call in (ledger.append(b"x"), client.logs(), anext(reader.follow()), ledger.flush(), ledger.close()):
            with pytest.raises(EventLoopError, match="the event loop in which this client was connected is closed"):
                await call
        await client.close()

    asyncio.run(first())
    run(second)


def test_a_loop_that_ends_under_its_client_harms_nobody(uri: str) -> None:
    """The client's threads tell nothing more."""
    kept: list[Any] = []

    async def main() -> None:
        client = await aio.connect(uri)
        ledger = await client.create_ledger()
        go_on = stalled(client)
        kept.extend((client, ledger, go_on, [await ledger.append_future(b"x") for _ in range(10)]))

    asyncio.run(main())
    client, ledger, go_on, acknowledgements = kept
    go_on.set()
    ledger._handle.flush()
    assert client._loop._gone and not client._loop._steps and not acknowledgements[0].done()
    run(lambda: client.close())


def test_several_loops_in_several_threads(uri: str) -> None:
    def work(number: int) -> list[bytes]:
        async def main() -> list[bytes]:
            async with aio.connect(uri, limits=QUICK) as client, client.create_ledger() as ledger:
                await asyncio.gather(*(ledger.append(b"%d" % number) for _ in range(50)))
                await ledger.close()
                async with client.open_ledger(ledger.ledger_id) as reader:
                    return await reader.read(0, 49)

        return asyncio.run(main())

    with ThreadPoolExecutor(4) as threads:
        for number, found in enumerate(threads.map(work, range(4))):
            assert found == [b"%d" % number] * 50


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_client_that_was_dropped_ends_by_itself(uri: str) -> None:
    async def main() -> tuple[weakref.ref[Any], list[threading.Thread]]:
        client = await aio.connect(uri)
        await client.logs()
        return weakref.ref(client), client._aside.pool._threads

    known, threads = asyncio.run(main())
    gc.collect()
    assert known() is None
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_outcomes_that_come_together_wake_the_loop_once(uri: str) -> None:
    """The cost that matters: one wakeup per run of acknowledgements, and not one for each entry."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, client.create_ledger() as ledger:
            await ledger.append(b"x")
            go_on = stalled(client)
            later = [await ledger.append_future(b"x") for _ in range(500)]
            before = client._loop.wakeups
            flushed = threading.Event()

            def flush() -> None:
                go_on.set()
                ledger._handle.flush()
                flushed.set()

            threading.Thread(target=flush).start()
            assert flushed.wait(60)  # the loop does nothing meanwhile, as one that is busy
            await asyncio.gather(*later)
            assert client._loop.wakeups - before <= 2

    run(main)
