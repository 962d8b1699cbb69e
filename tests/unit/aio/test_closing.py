"""Closing of the asyncio client and its handles: again, after each other, after a loop that was closed, and when it takes too long."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bk_core import aio
from bk_core.aio import loops
from bk_core.errors import ClientClosedError, EventLoopError, LeftOpenError, OperationTimeoutError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from tests.unit.aio.loops import PATIENCE_S, eventually, run, stalled
from tests.unit.aio.test_aio import KINDS, open_writer

QUICK = Limits(explicit_lac_ns=5_000_000)  # readers hear soon of the last entry


# --- loops -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["append", "flush", "follow", "tail", "aside"])
def test_a_client_whose_loop_was_closed_under_a_task_is_closed_in_another(uri: str, what: str) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[aio.BookKeeper, threading.Event, asyncio.Task[Any], dict[str, Any]]:
        client = await aio.connect(uri, limits=QUICK)
        ledger, log = await client.create_ledger(), await client.create_log("a", entry_format="raw")
        reader, entries = log.reader(), await client.open_ledger(ledger.ledger_id)
        go_on = stalled(client)
        if what == "flush":
            await ledger.append_future(b"x")
        calls: dict[str, Any] = {
            "append": lambda: ledger.append(b"x"),
            "flush": ledger.flush,
            "follow": lambda: reader.follow().__anext__(),
            "tail": lambda: entries.tail().__anext__(),
            "aside": lambda: client._aside.run(lambda: go_on.wait(PATIENCE_S)),
        }
        waits = loop.create_task(calls[what]())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waits.done()
        waits._log_destroy_pending = False  # type: ignore[attr-defined]
        return client, go_on, waits, calls

    client, go_on, waits, _kept = loop.run_until_complete(begin())
    loop.close()
    threading.Timer(0.1, go_on.set).start()
    run(client.close)
    run(client.close)
    assert client.is_closed and client._client._closed and not waits.done()


def test_steps_for_a_loop_that_was_closed_before_its_turn_are_dropped() -> None:
    async def made() -> loops.Loop:
        return loops.Loop()

    loop = asyncio.new_event_loop()
    steps = loop.run_until_complete(made())
    steps.call(lambda: None)  # the loop is woken, and does not run any more
    loop.close()
    steps.call(lambda: None)
    assert not steps._steps


def test_a_step_that_raises_holds_up_no_other() -> None:
    async def main() -> list[Any]:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        loop = loops.Loop()
        for step in (lambda: told.append(0), lambda: 1 // 0, lambda: told.append(1), lambda: 1 // 0, lambda: told.append(2)):
            loop.call(step)
        await eventually(lambda: 2 in told)
        return told

    first, second, third, fourth, fifth = asyncio.run(main())
    assert (first, third, fifth) == (0, 1, 2) and all(isinstance(error, ZeroDivisionError) for error in (second, fourth))


def test_nothing_is_begun_in_another_loop(uri: str) -> None:
    kept: list[Any] = []

    async def first() -> None:
        client = await aio.connect(uri)
        kept.extend((client, await client.create_ledger(deferred_sync=True)))

    async def second() -> None:
        client, ledger = kept
        asked: list[Any] = []
        ledger._handle.force_future = lambda: asked.append(1)
        with pytest.raises(EventLoopError, match="the event loop in which this client was connected is closed"):
            await ledger.force()
        assert not asked
        await client.close()

    asyncio.run(first())
    run(second)


# --- again -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, OperationTimeoutError, MemoryError])
def test_a_close_that_failed_says_so_and_may_be_made_again(uri: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    async def main() -> None:
        client = await aio.connect(uri)

        def fail() -> None:
            raise error("the test's")

        with monkeypatch.context() as patch:
            patch.setattr(client._client, "close", fail)
            with pytest.raises(error, match="the test's"):
                await client.close()
        assert client.is_closed and not client._client._closed
        await client.close()
        assert client._client._closed

    run(main)


def test_every_handle_may_be_closed_again_after_its_client(uri: str) -> None:
    async def main() -> None:
        client = await aio.connect(uri, limits=QUICK)
        ledger, log = await client.create_ledger(), await client.create_log("a", entry_format="raw")
        await ledger.append(b"x")
        writer, reader = await log.writer(), log.reader()
        async for _ in reader.read():
            raise AssertionError
        entries = await client.open_ledger(ledger.ledger_id)
        for handle in (ledger, writer, reader, entries):
            await handle.close()
        await client.close()
        for handle in (writer, reader, entries):
            await handle.close()
        assert (await ledger.close()).last_entry_id == 0 and (await ledger.close()).state is LedgerState.CLOSED

    run(main)


def test_readers_that_were_open_are_closed_with_their_client(uri: str) -> None:
    async def main() -> None:
        client = await aio.connect(uri, limits=QUICK)
        ledger, log = await client.create_ledger(), await client.create_log("a", entry_format="raw")
        reader, entries = log.reader(), await client.open_ledger(ledger.ledger_id)
        async for _ in reader.read():
            raise AssertionError
        await client.close()
        for handle in (reader, entries):
            await handle.close()
        with pytest.raises(LeftOpenError):  # it was not closed, and nobody can do it any more
            await ledger.close()

    run(main)


def test_a_writer_of_a_log_that_lost_entries_with_its_client_says_so_once(uri: str) -> None:
    async def main() -> None:
        client = await aio.connect(uri)
        writer = await open_writer(client, "log")
        go_on = stalled(client)
        await writer.append_future(b"x")
        threading.Timer(0.1, go_on.set).start()
        await client.close()
        with pytest.raises(ClientClosedError, match="the client of the writer of log 'a' was closed by this program"):
            await writer.close()
        with pytest.raises(LeftOpenError, match="log 'a', so its ledger stays open"):
            await writer.close()

    run(main)


# --- time ------------------------------------------------------------------------------------------------------------------


def test_a_close_of_a_log_s_writer_that_takes_too_long_goes_on(uri: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, operation_timeout_s=0.5) as client:
            writer = await open_writer(client, "log")
            go_on = stalled(client)
            await writer.append_future(b"x")
            with pytest.raises(OperationTimeoutError, match=r"1 appends stayed unacknowledged for 0\.5 s"):
                await writer.close()
            with pytest.raises(ClientClosedError, match="the writer of log 'a' was closed by this program"):
                await writer.append(b"y")
            go_on.set()
            while (metadata := await client.ledger_metadata(writer.ledger_id)).state is not LedgerState.CLOSED:
                await asyncio.sleep(0.001)
            assert metadata.last_entry_id == 0
            await writer.close()

    run(main)


# --- room of others --------------------------------------------------------------------------------------------------------


def test_room_that_another_ledger_makes_is_used(uri: str) -> None:
    """Nothing of the ledger's own is answered meanwhile, and nobody polls."""

    async def main() -> None:
        async with aio.connect(uri, limits=Limits(unretired_entries_max=4)) as client:
            ledger, other = await client.create_ledger(), await client.create_ledger()
            adds, reactor = client._client._session.adds, client._client._session.reactor
            own, others = ledger._handle._share, other._handle._share
            adds.hand_in(own, lambda _: None, 1)  # as if one bookie of its own did not answer
            adds.hand_in(others, lambda _: None, 4)
            appending = asyncio.create_task(ledger.append(b"x"))
            await eventually(lambda: own in adds._crowded)
            assert own.line and not appending.done()
            reactor.post(lambda: adds.released(others, 4))
            assert await appending == 0
            reactor.post(lambda: adds.released(own, 1))
            for share in (own, others):
                reactor.post(lambda share=share: adds.answered(share, 0, share.batch))  # type: ignore[misc]
            for handle in (ledger, other):
                await handle.close()

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_close_waits_for_appends_that_stand_in_line(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri, limits=Limits(pending_bytes_max=10)) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
            go_on = stalled(client)
            appending = [asyncio.create_task(writer.append(b"0123456789")) for _ in range(3)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(writer.close())
            await asyncio.sleep(0)
            go_on.set()
            await closing
            assert len({*await asyncio.gather(*appending)}) == 3

    run(main)
