"""Waits of the asyncio client that are ended in the middle, by a cancellation or by closing what they wait for."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bk_core import aio
from bk_core.aio import reading
from bk_core.aio.loops import THREADS
from bk_core.errors import ClientClosedError, ConcurrentIterationError, NoSuchLogError
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.effects import AwaitList
from bk_core.protocol.log.position import Position
from tests.unit.aio.loops import PATIENCE_S, eventually, run, stalled

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
            go_on = stalled(client)  # else it may be acknowledged before anybody waits
            acknowledged = await writer.append_future(b"x")
            waits = asyncio.create_task(waited(acknowledged))
            await eventually(lambda: acknowledged._waiters)
            waits.cancel()
            acknowledged._wake()  # before the task runs again
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert waits.cancelled()
            go_on.set()

    async def waited(acknowledged: Any) -> None:
        await acknowledged._news()

    run(main)


async def opened(client: aio.BookKeeper, kind: str) -> Any:
    return await client.create_ledger() if kind == "ledger" else await (await client.create_log("a", entry_format="raw")).writer()


# --- iterations that another task ends, or asks as well -------------------------------------------------------------------


def test_a_tail_that_another_task_ends_is_over(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, client.create_ledger() as ledger:
            async with client.open_ledger(ledger.ledger_id) as entries:
                runs = entries.tail()
                waits = asyncio.create_task(collected(runs))
                await eventually(lambda: runs._waiter)
                await runs.aclose()
                assert await waits == [] and await collected(runs) == []

    run(main)


@pytest.mark.parametrize("closed", ["handle", "client"])
@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_a_follower_whose_reader_or_client_is_closed_is_over(uri: str, kind: str, closed: str) -> None:
    """``tail`` of a ledger as ``follow`` of a log; a wait for one entry has no answer then, and raises."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as writing, await opened(writing, kind):
            client = await aio.connect(uri, limits=QUICK)
            (ledger_id,) = client.sync.list_ledgers()
            reader = await client.open_ledger(ledger_id) if kind == "ledger" else (await client.log("a")).reader()
            runs: Any = reader.tail() if kind == "ledger" else reader.follow()
            waits = [asyncio.create_task(collected(runs))]
            if kind == "ledger":
                waits.append(asyncio.create_task(reader.wait_for(0, PATIENCE_S)))
            await eventually(lambda: runs._waiter if kind == "ledger" else reader._waiter)
            await (client if closed == "client" else reader).close()
            assert await waits[0] == [] and await collected(runs) == []
            for wait in waits[1:]:
                with pytest.raises(ClientClosedError):
                    await wait
            await client.close()

    run(main)


def test_a_read_of_a_range_that_another_task_ends_is_no_end(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            async with client.create_ledger() as ledger:
                await ledger.append(b"x")
            async with client.open_ledger(ledger.ledger_id) as entries:
                go_on = stalled(client)
                runs = entries.read_runs(0, 0)
                waits = asyncio.create_task(collected(runs))
                await eventually(lambda: runs._waiter)
                await runs.aclose()
                with pytest.raises(ClientClosedError, match=f"a read of ledger {ledger.ledger_id} was ended by another task"):
                    await waits
                assert await collected(runs) == []
                go_on.set()

    run(main)


def test_a_second_task_that_asks_an_iteration_is_refused(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client, client.create_ledger() as ledger:
            async with client.open_ledger(ledger.ledger_id) as entries:
                runs = entries.tail()
                first = asyncio.create_task(runs.__anext__())
                await eventually(lambda: runs._waiter)
                with pytest.raises(ConcurrentIterationError, match="another task waits for the next run of a tail of ledger") as told:
                    await runs.__anext__()
                assert isinstance(told.value, RuntimeError)
                await ledger.append(b"x")
                assert (await first).payloads() == [b"x"]
                await runs.aclose()

    run(main)


@pytest.mark.parametrize("follows", [True, False])
def test_an_iteration_of_a_log_that_another_task_ends_is_over(uri: str, monkeypatch: pytest.MonkeyPatch, follows: bool) -> None:
    """The reader itself goes on where it was."""
    listen, gates = reading.LogReader._listen, []

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append(b"0")

            def listening(reader: Any, stream: Any) -> None:
                gates.append(stalled(client))
                listen(reader, stream)

            async with log.reader() as reader:
                runs = reader.follow() if follows else reader.read()
                with monkeypatch.context() as patch:
                    patch.setattr(reading.LogReader, "_listen", listening)
                    waits = asyncio.create_task(collected(runs))
                    await eventually(lambda: gates and reader._waiter)
                await runs.aclose()
                if follows:
                    assert await waits == []
                else:
                    with pytest.raises(ClientClosedError, match="a read of log 'a' was ended by another task"):
                        await waits
                gates[0].set()
                assert await collected(runs) == [] and await collected(reader.read()) == [b"0"]

    run(main)


async def collected(runs: Any) -> list[bytes]:
    return [payload async for run in runs for payload in run.payloads()]


# --- steps of a reader that were left under way ---------------------------------------------------------------------------


class Gate:
    """Holds a call that blocks, after its work is done, until it is opened."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.made: list[Any] = []
        self.entered, self.opened = threading.Event(), threading.Event()
        self._call = call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.made.append(self._call(*arguments, **named))
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return self.made[-1]


async def struck(task: asyncio.Task[Any], gate: Gate) -> None:
    """Cancel the task while its call stands at the gate."""
    await eventually(gate.entered.is_set)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_a_reader_of_the_latest_that_was_cancelled_at_once_misses_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append(b"before")
            async with log.writer() as writer:
                gate = Gate(reading._Steps.of)
                monkeypatch.setattr(reading._Steps, "of", gate)
                reader = log.reader(start="latest")
                await struck(asyncio.create_task(reader.follow().__anext__()), gate)
                await writer.append(b"after")
                gate.opened.set()
                assert (await asyncio.wait_for(reader.follow().__anext__(), PATIENCE_S / 4)).payloads() == [b"after"]
                await reader.close()
            assert len(gate.made) == 1

    run(main)


def test_a_list_that_was_read_for_a_cancelled_call_is_read_again(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes after that, so no watch would tell of it."""
    read_list, go_on = reading._Steps._read_list, threading.Event()

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append(b"before")
            async with log.reader() as reader:
                assert (await reader.follow().__anext__()).payloads() == [b"before"]
                waits = asyncio.create_task(reader.follow().__anext__())
                await eventually(lambda: reader._waiter is not None and isinstance(reader._steps and reader._steps.rest(), AwaitList))

                def late(effect: Any) -> Any:
                    assert go_on.wait(PATIENCE_S)
                    return read_list(reader._steps, effect)  # type: ignore[arg-type]

                gate = Gate(late)
                monkeypatch.setattr(reader._steps, "_read_list", gate)
                async with log.writer() as writer:
                    await writer.append(b"after")
                go_on.set()
                await struck(waits, gate)
                gate.opened.set()
                found = await asyncio.wait_for(reader.follow().__anext__(), PATIENCE_S / 4)
                assert found.payloads() == [b"after"]

    run(main)


@pytest.mark.parametrize("how", ["close", "drop", "follow"])
def test_a_watch_whose_wait_was_cancelled_is_let_go(uri: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            store: Any = client._client.store
            gate = Gate(store.watch)
            monkeypatch.setattr(type(store), "watch", gate)
            reader = log.reader()
            await struck(asyncio.create_task(reader.follow().__anext__()), gate)
            (watch,) = gate.made

            def is_set() -> bool:
                return any(one is watch for some in store._world.watches.values() for one in some)

            assert is_set()
            if how == "close":
                closing = asyncio.create_task(reader.close())
                await asyncio.sleep(0)
                gate.opened.set()
                await closing
            elif how == "drop":
                del reader
                gc.collect()
                gate.opened.set()
                await eventually(lambda: not is_set())
            else:
                gate.opened.set()
                async with log.writer() as writer:
                    await writer.append(b"x")
                assert (await reader.follow().__anext__()).payloads() == [b"x"]
                await reader.close()
            assert not is_set() and gate.made == [watch]

    run(main)


def test_a_reader_that_is_closed_while_it_begins_holds_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            gate = Gate(reading._Steps.of)
            monkeypatch.setattr(reading._Steps, "of", gate)
            reader = log.reader()
            follows = asyncio.create_task(collected(reader.follow()))
            await eventually(gate.entered.is_set)
            closing = asyncio.create_task(reader.close())
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(closing, follows)
            assert await follows == [] and reader._steps is gate.made[0]
            assert reader._steps.watch is None and reader._steps.ledger is None

    run(main)


def test_a_reader_that_is_entered_knows_its_start(uri: str) -> None:
    """Entries that are appended in the block come behind "latest", though nothing was read before."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            log = await client.create_log("a", entry_format="raw")
            async with log.writer() as writer:
                await writer.append(b"before")
            async with log.writer() as writer:
                async with log.reader(start="latest") as reader:
                    assert reader.position == Position(1, 0)
                    await writer.append(b"after")
                    assert (await reader.follow().__anext__()).payloads() == [b"after"]
            await log.delete()
            with pytest.raises(NoSuchLogError):
                async with log.reader():
                    raise AssertionError

    run(main)


# --- bookies that do not answer -------------------------------------------------------------------------------------------


def test_calls_that_wait_for_bookies_hold_up_no_request_to_the_store(uri: str) -> None:
    """As many as there are threads wait, and more."""

    async def main() -> None:
        async with aio.connect(uri, limits=QUICK) as client:
            logs = [await client.create_log(f"log{number}", entry_format="raw") for number in range(THREADS + 1)]
            writers = [await log.writer() for log in logs]
            go_on = stalled(client)
            rolling = [asyncio.create_task(writer.roll()) for writer in writers]
            await eventually(lambda: not client._aside.lasting._idle and len(client._aside.lasting._threads) == THREADS)
            try:
                assert len(await asyncio.wait_for(client.logs(), PATIENCE_S / 4)) == len(logs)
                assert await asyncio.wait_for(client.list_ledgers(), PATIENCE_S / 4)
            finally:
                go_on.set()
            await asyncio.gather(*rolling)
            for writer in writers:
                await writer.close()

    run(main)
