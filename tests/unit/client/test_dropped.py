"""Objects that nobody refers to any more go: handles, writers and readers of logs, clients with their threads and descriptors.

Each program is a process of its own: it counts objects, threads and descriptors, which other tests would disturb, and hears its warnings.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import gc, os, sys, tempfile, threading, time, warnings
from collections import Counter
import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.client.log.lists import create_log
from bk_core.protocol.log.segments import LogProperties
from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.metadata import open_store
from bk_core.protocol.ledger.metadata import LedgerState

PATIENCE_S = 120
uri = "memory://dropped"
store = open_store(uri)
store.initialize_cluster()
directory = tempfile.TemporaryDirectory()
bookies = [EmbeddedBookie(f"{directory.name}/{i}", "127.0.0.1", 0, store).start() for i in range(3)]
said = Counter()
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_: said.update([" ".join(str(message).split()[:2])])


def living(*kinds):
    gc.collect()
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def awaited(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, said
        time.sleep(0.01)


def threads():
    return len(os.listdir("/proc/self/task"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def passed(bk):
    done = threading.Event()
    bk._session.reactor.post(done.set)
    assert done.wait(PATIENCE_S)
"""


def run(program: str) -> None:
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-X", "faulthandler", "-c", HEAD + textwrap.dedent(program) + "\nprint('ended')"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2000:]


def test_writers_of_ledgers() -> None:
    """Pending requests keep them until they are answered; their ledgers stay OPEN."""
    run(
        """
        bk = bk_core.connect(uri)
        futures, ledgers = [], []
        for n in range(100):
            ledger = bk.create_ledger()
            ledgers.append(ledger.ledger_id)
            futures.append(ledger.append_future(b"x"))
            if n % 3 == 0:
                assert futures.pop().result(PATIENCE_S) == 0
        del ledger
        assert {future.result(PATIENCE_S) for future in futures} == {0}
        del futures
        awaited(lambda: living(WriteHandle) == 0)
        passed(bk)
        assert said == {"unclosed <WriteHandle": 100}, said
        session = bk._session
        assert not session._on_bookies and not session._closables.data and (session.adds._total, session.adds._ledgers) == (0, 0)
        assert not any(link._listeners for link in session._links.values())
        assert {bk.ledger_metadata(ledger_id).state for ledger_id in ledgers} == {LedgerState.OPEN}
        with bk.recover_ledger(ledgers[7]) as reader:
            assert reader.read(0, reader.last_add_confirmed) == [b"x"]
        bk.close()
        """
    )


def test_a_writer_whose_appends_wait() -> None:
    """The reactor stands still meanwhile, so nothing is answered."""
    run(
        """
        bk = bk_core.connect(uri)
        go_on = threading.Event()
        ledger = bk.create_ledger()
        bk._session.reactor.post(lambda: go_on.wait(PATIENCE_S))
        future = ledger.append_future(b"x")
        del ledger
        assert living(WriteHandle) == 1 and not said
        go_on.set()
        assert future.result(PATIENCE_S) == 0
        awaited(lambda: living(WriteHandle) == 0)
        assert said == {"unclosed <WriteHandle": 1}
        bk.close()
        """
    )


def test_readers_of_ledgers() -> None:
    """One of a CLOSED ledger holds nothing, so there is nothing to say."""
    run(
        """
        bk = bk_core.connect(uri)
        with bk.create_ledger() as ledger, bk.create_ledger() as live:
            ledger.append(b"x")
            live.append(b"x")
            live.append(b"y")
            ledger.close()
            for n in range(100):
                bk.open_ledger(ledger.ledger_id).read(0, 0)
                reader = bk.open_ledger(live.ledger_id)
                assert reader.read(0, 0) == [b"x"]
                next(reader.tail())
            del reader
            awaited(lambda: living(ReadHandle) == 0)
            passed(bk)
            assert said == {"unclosed <ReadHandle": 100}, said
            assert not store._world.watches.get(f"ledger/{live.ledger_id}")
        bk.close()
        """
    )


def test_writers_and_readers_of_logs() -> None:
    run(
        """
        bk = bk_core.connect(uri)
        before = threads()
        for n in range(40):
            create_log(bk, f"log{n}", LogProperties(entry_format="raw"))
            writer = LogWriter.open(bk, f"log{n}", roll_max_s=3600)
            future = writer.append_future(b"x")
            if n % 2:
                future.result(PATIENCE_S)
            reader = LogReader(bk, f"log{n}")
            if future.done():
                runs = reader.follow()
                next(runs)
                del runs
        del writer, reader
        future.result(PATIENCE_S)
        del future
        awaited(lambda: living(LogWriter, LogReader, WriteHandle, ReadHandle) == 0)
        awaited(lambda: threads() <= before + bk._session._metadata._threads_max)
        assert said["unclosed <LogWriter"] == 40 and not said["unclosed <WriteHandle"], said
        with LogReader(bk, "log7") as reader:
            assert [payload for run in reader.read() for payload in run.payloads()] == [b"x"]
        with LogWriter.open(bk, "log7") as writer:
            writer.append(b"y")
        bk.close()
        """
    )


@pytest.mark.parametrize("how", ["plain", "with handles", "in cycles"])
def test_clients(how: str) -> None:
    """Their threads and descriptors end. A handle keeps its client."""
    run(
        f"how = {how!r}\n"
        + textwrap.dedent(
            """
            warm = bk_core.connect(uri)
            warm.create_ledger().close()
            warm.close()
            del warm
            threads_before, open_before = threads(), descriptors()
            for n in range(40):
                bk = bk_core.connect(uri)
                ledger = bk.create_ledger()
                ledger.append(b"x")
                if how == "plain":
                    ledger.close()
                elif how == "with handles":
                    kept = ledger
                    del bk, ledger
                    assert kept.append(b"y") == 1
                    del kept
                else:
                    bk.me = bk
                    ledger.close()
            bk = ledger = None
            awaited(lambda: living(bk_core.BookKeeper, WriteHandle) == 0)
            awaited(lambda: threads() <= threads_before and descriptors() <= open_before)
            assert said["unclosed <BookKeeper"] == 40, said
            assert said["unclosed <WriteHandle"] == (40 if how == "with handles" else 0), said
            """
        )
    )


def test_the_thread_that_ends_a_client_is_faster() -> None:
    """A dropped client tells that it was not closed, also when it has ended before the finalizer goes on."""
    run(
        """
        from bk_core.client import client
        client.start_aside = lambda run, name: run()
        bk = bk_core.connect(uri)
        del bk
        assert said["unclosed <BookKeeper"] == 1, said
        """
    )


def test_what_is_closed_says_nothing() -> None:
    run(
        """
        bk = bk_core.connect(uri)
        create_log(bk, "log", LogProperties(entry_format="raw"))
        left, reader = bk.create_ledger(), None
        for n in range(20):
            with bk.create_ledger() as ledger:
                ledger.append(b"x")
            bk.create_ledger().abandon()
            with LogWriter.open(bk, "log") as writer, LogReader(bk, "log") as reader:
                writer.append(b"x")
                list(reader.read())
        ids = bk.list_ledgers()
        bk.close()
        del bk, left, ledger, writer, reader, ids
        awaited(lambda: living(bk_core.BookKeeper, LogWriter, WriteHandle, ReadHandle) == 0)
        assert not said, said
        """
    )


def test_an_iterator_keeps_its_client() -> None:
    run(
        """
        with bk_core.connect(uri) as bk:
            bk.create_ledger().close()
        del bk
        assert list(bk_core.connect(uri).list_ledgers()) == [0]
        awaited(lambda: living(bk_core.BookKeeper) == 0)
        """
    )
