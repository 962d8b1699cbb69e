"""The asyncio client under load: hundreds of tasks and many followers on one loop, while bookies die, stand still, and clients close.

Every acknowledged entry is where its task was told, every follower sees its whole log in order, and the loop goes on all the time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bk_core import aio
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BkError, ClientClosedError
from bk_core.protocol.limits import Limits
from tests.integration.patience import PATIENCE_S, PATIENT
from tests.network.stopping import stop_process

LEDGERS, LOGS, TASKS, ENTRIES, FOLLOWERS = 10, 5, 300, 20, 20


@pytest.fixture(scope="module")
def embedded(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("embedded")


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Callable[[], tuple[int, float]]]:
    """Count the turns of the loop beside everything else; the longest gap between two is told and never judged."""
    loop = asyncio.get_running_loop()
    turns, longest = 0, 0.0

    async def beat() -> None:
        nonlocal turns, longest
        last = loop.time()
        while True:
            await asyncio.sleep(0.001)
            now = loop.time()
            turns, longest, last = turns + 1, max(longest, now - last), now

    beating = asyncio.create_task(beat())
    try:
        yield lambda: (turns, longest)
    finally:
        beating.cancel()


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def run(main: Any) -> Any:
    """Run ``main`` in a loop of its own, in a bounded time. What nobody retrieved fails the test."""
    complaints: list[str] = []

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(f"{context}"))
        async with asyncio.timeout(4 * PATIENCE_S):
            return await main()

    found = asyncio.run(watched())
    assert not complaints, complaints
    return found


@pytest.mark.parametrize("fault", ["none", "kill -9"])
def test_hundreds_of_tasks_and_many_followers(embedded: LocalCluster, record_property: Callable[[str, object], None], fault: str) -> None:
    async def main() -> None:
        prefix = f"aio-{uuid.uuid4().hex[:8]}"
        async with aio.connect(embedded.uri, limits=PATIENT, ensemble_change="delayed") as client, heartbeat() as beats:
            logs = [await client.create_log(f"{prefix}-{n}", entry_format="raw") for n in range(LOGS)]
            writers: list[Any] = [await log.writer() for log in logs]
            writers += [await client.create_ledger() for _ in range(LEDGERS)]
            seen: list[list[tuple[int, int, bytes]]] = [[] for _ in range(FOLLOWERS)]
            readers = [logs[n % LOGS].reader() for n in range(FOLLOWERS)]

            async def follow(number: int) -> None:
                async for part in readers[number].follow():
                    places = range(part.first_entry_id, part.first_entry_id + part.count)
                    seen[number] += [(part.segment.seq, entry, payload) for entry, payload in zip(places, part.payloads(), strict=True)]

            told: dict[int, list[tuple[Any, bytes]]] = defaultdict(list)
            halfway = asyncio.Event()

            async def append(task: int) -> None:
                number = task % len(writers)
                for n in range(ENTRIES):
                    payload = b"%d.%d" % (task, n)
                    told[number].append((await writers[number].append(payload), payload))
                    if sum(map(len, told.values())) == TASKS * ENTRIES // 2:
                        halfway.set()

            async def disturb() -> None:
                await halfway.wait()
                if fault != "none":
                    await asyncio.to_thread(embedded.kill, 0)

            following = [asyncio.create_task(follow(number)) for number in range(FOLLOWERS)]
            await asyncio.gather(disturb(), *(append(task) for task in range(TASKS)))
            if fault != "none":
                await asyncio.to_thread(embedded.restart, 0)
            await asyncio.gather(*(writer.close() for writer in writers))
            counts = [len(told[number]) for number in range(LOGS)]
            await eventually(lambda: [len(entries) for entries in seen] == [counts[n % LOGS] for n in range(FOLLOWERS)])
            await asyncio.gather(*(reader.close() for reader in readers))
            await asyncio.gather(*following)

            for number, entries in enumerate(seen):
                assert [entry[:2] for entry in entries] == sorted({entry[:2] for entry in entries})
                assert {((seq, entry), payload) for seq, entry, payload in entries} == {
                    ((place.seq, place.entry), payload) for place, payload in told[number % LOGS]
                }
            for number in range(LOGS, len(writers)):
                async with client.open_ledger(writers[number].ledger_id) as ledger:
                    found = await ledger.read(0, ledger.last_add_confirmed)
                assert dict(enumerate(found)) == dict(told[number]) and len(found) == len(told[number])
            assert len(client._aside.pool._threads) <= 4
            turns, longest = beats()
            assert turns
            record_property("longest gap of the loop", f"{longest * 1000:.0f} ms")
            print(f"{fault}: {TASKS * ENTRIES} entries, {client._loop.wakeups} wakeups, longest gap of the loop {longest * 1000:.0f} ms")
            for log in logs:
                await log.delete()

    run(main)


@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_the_loop_goes_on_while_no_bookie_answers(embedded: LocalCluster, kind: str) -> None:
    """The window is full and stays full. Other tasks go on, also those that ask the metadata store, and an append may be cancelled."""

    async def main() -> None:
        limits = Limits(add_timeout_ns=60_000_000_000, pending_bytes_max=100_000)
        async with aio.connect(embedded.uri, limits=limits) as client, heartbeat() as beats:
            log = await client.create_log(f"aio-{uuid.uuid4().hex[:8]}", entry_format="raw")
            writer: Any = await (client.create_ledger() if kind == "ledger" else log.writer(outstanding_bytes_max=100_000))
            await writer.append(b"-")
            pids = [embedded.pid(index) for index in range(len(embedded.bookie_ids))]
            for pid in pids:
                assert pid is not None
                await asyncio.to_thread(stop_process, pid)
            try:
                appending = [asyncio.create_task(writer.append(b"%06d" % n + bytes(10_000))) for n in range(60)]
                flushing = asyncio.create_task(writer.flush())
                before, _ = beats()
                await eventually(lambda: beats()[0] > before + 100)
                assert log.name in await client.logs() and len(await client.list_ledgers()) > 0
                appending[-1].cancel()  # it stands in line, so it does not happen
                with pytest.raises(asyncio.CancelledError):
                    await appending.pop()
                assert not any(one.done() for one in (*appending, flushing))
            finally:
                for pid in pids:
                    os.kill(pid or 0, signal.SIGCONT)
            places = await asyncio.gather(*appending)
            await flushing
            assert places == sorted(places)
            await writer.close()
            if kind == "ledger":
                async with client.open_ledger(writer.ledger_id) as ledger:
                    found = await ledger.read(0, ledger.last_add_confirmed)
            else:
                found = [payload async for part in log.reader() for payload in part.payloads()]
            assert [int(payload[:6]) for payload in found[1:]] == list(range(59))
            await log.delete()

    run(main)


def test_a_client_that_is_closed_in_the_middle(embedded: LocalCluster) -> None:
    """Every task ends at once, with its entries or an error that says why; what was acknowledged is there."""

    async def main() -> None:
        client = await aio.connect(embedded.uri, limits=PATIENT)
        log = await client.create_log(f"aio-{uuid.uuid4().hex[:8]}", entry_format="raw")
        ledger, writer = await client.create_ledger(), await log.writer()
        told: list[bytes] = []
        errors: list[BkError] = []
        enough = asyncio.Event()

        async def append(to: Any, task: int) -> None:
            n = 0
            try:
                while True:
                    payload = b"%d.%d" % (task, n)
                    await to.append(payload)
                    told.append(payload)
                    n += 1
                    if len(told) > 500:
                        enough.set()
            except BkError as error:
                errors.append(error)

        async def follow() -> None:
            async for _ in log.reader().follow():
                pass

        tasks = [asyncio.create_task(append(writer if n % 2 else ledger, n)) for n in range(100)]
        following = [asyncio.create_task(follow()) for _ in range(10)]
        await enough.wait()
        await client.close()
        await asyncio.gather(*tasks, *following)
        assert len(errors) == 100 and any(isinstance(error, ClientClosedError) for error in errors)
        async with aio.connect(embedded.uri, limits=PATIENT) as again:
            async with again.recover_ledger(ledger.ledger_id) as recovered:
                found = await recovered.read(0, recovered.last_add_confirmed)
            async with (await again.log(log.name)).writer(take_over=True):
                pass
            found += [payload async for part in (await again.log(log.name)).reader() for payload in part.payloads()]
            assert set(told) <= set(found) and len(set(found)) == len(found)
            await (await again.log(log.name)).delete()

    run(main)


def test_several_loops_share_a_cluster(embedded: LocalCluster) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        async def main() -> None:
            async with aio.connect(embedded.uri, limits=PATIENT) as client, client.create_ledger() as ledger:
                places = await asyncio.gather(*(ledger.append(b"x") for _ in range(100)))
                assert sorted(places) == list(range(100))

        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert not errors and not any(thread.is_alive() for thread in threads)


def test_everything_on_our_bookies_and_on_apache_s(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.uri, limits=PATIENT) as client:
            log = await client.create_log(f"aio-{uuid.uuid4().hex[:8]}", entry_format="raw")
            reader, found = log.reader(), []

            async def follow() -> None:
                async for part in reader.follow():
                    found.extend(part.payloads())

            following = asyncio.create_task(follow())
            async with log.writer() as writer, client.create_ledger() as ledger:
                await asyncio.gather(*(writer.append(b"%d" % n) for n in range(200)), ledger.append_many([b"x"] * 3000))
                for n in range(200, 400):
                    await writer.append_future(b"%d" % n)
                await writer.flush()
            await eventually(lambda: len(found) == 400)
            assert sorted(map(int, found)) == list(range(400))
            async with client.open_ledger(ledger.ledger_id) as entries:
                assert await entries.read(0, 2999) == [b"x"] * 3000
            await reader.close()
            await following
            await log.delete()

    run(main)
