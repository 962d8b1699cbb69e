"""The ends of programs: threads that outlive the main thread, functions given to ``atexit``, clients that a destructor closes, or nobody.

Each program is a process of its own, and has to end by itself, promptly and without a word on its standard error.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.files.upkeep import file_store_owner
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties

PROMPT_S = 60  # for a machine under load; what these tests are about waited for ever, or printed

HEAD = """
import atexit, sys, threading, bk_core
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
uri, name = sys.argv[1:]
bk = bk_core.connect(uri)
ended = threading.main_thread().join  # returns when the main thread is at its end
"""


@dataclass(frozen=True)
class Ended:
    """The output of a program that has ended."""

    lines: list[str]

    @property
    def ledger_id(self) -> int:
        return int(self.lines[0])


@pytest.fixture
def embedded(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("embedded")


def run(cluster: LocalCluster, program: str, name: str = "-", before: str = "") -> Ended:
    command = [sys.executable, "-X", "faulthandler", "-c", before + HEAD + textwrap.dedent(program), cluster.uri, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROMPT_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return Ended(done.stdout.splitlines())


def entries(cluster: LocalCluster, ledger_id: int) -> tuple[LedgerState, list[bytes]]:
    with bk_core.connect(cluster.uri) as bk:
        state = bk.ledger_metadata(ledger_id).state
        with bk.open_ledger(ledger_id) as ledger:
            return state, ledger.read(0, ledger.last_add_confirmed)


def test_a_client_that_is_closed_leaves_no_thread_that_speaks_to_zookeeper(embedded: LocalCluster) -> None:
    before = set(threading.enumerate())
    for _ in range(20):
        with bk_core.connect(embedded.uri) as bk:
            list(bk.list_ledgers())
        assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("bk-zookeeper")] == []


def test_a_thread_goes_on_after_the_main_thread(embedded: LocalCluster) -> None:
    """It creates, writes, reads, recovers and closes as before."""
    ended_ = run(
        embedded,
        """
        def work():
            ended()
            with bk.create_ledger() as ledger:
                for n in range(200):
                    ledger.append(b"%d" % n)
            with bk.open_ledger(ledger.ledger_id) as reader:
                assert len(reader.read(0, 199)) == 200
            lost = bk.create_ledger()
            lost.append(b"x")
            lost.abandon()
            bk.recover_ledger(lost.ledger_id).close()
            print(ledger.ledger_id)
            bk.close()
        threading.Thread(target=work).start()
        """,
    )
    state, found = entries(embedded, ended_.ledger_id)
    assert state is LedgerState.CLOSED and found == [b"%d" % n for n in range(200)]


def test_a_ledger_is_closed_at_exit(embedded: LocalCluster) -> None:
    ended_ = run(
        embedded,
        """
        ledger = bk.create_ledger()
        print(ledger.ledger_id)
        atexit.register(ledger.close)
        futures = [ledger.append_future(b"%d" % n) for n in range(100)]
        """,
    )
    assert entries(embedded, ended_.ledger_id) == (LedgerState.CLOSED, [b"%d" % n for n in range(100)])


@pytest.fixture
def log_name(embedded: LocalCluster) -> str:
    name = f"log-{uuid.uuid4().hex[:12]}"
    with bk_core.connect(embedded.uri) as bk:
        create_log(bk, name, LogProperties(entry_format="raw"))
    return name


def contents(cluster: LocalCluster, name: str) -> tuple[int, int, list[bytes]]:
    """Segments, live ones among them, entries."""
    with bk_core.connect(cluster.uri) as bk, LogReader(bk, name) as reader:
        listed = read_ledger_list(bk, name)
        return len(listed.segments), len(listed.live_segments), [payload for run in reader.read() for payload in run.payloads()]


def test_a_log_writer_rolls_after_the_main_thread_and_closes(embedded: LocalCluster, log_name: str) -> None:
    run(
        embedded,
        """
        writer = LogWriter.open(bk, name)
        def work():
            ended()
            for n in range(30):
                writer.append(b"%d" % n)
                if n % 10 == 9:
                    writer.roll()
            writer.close()
        threading.Thread(target=work).start()
        """,
        log_name,
    )
    segments, live, found = contents(embedded, log_name)
    assert (segments, live) == (4, 0) and found == [b"%d" % n for n in range(30)]


def test_a_log_writer_is_closed_at_exit(embedded: LocalCluster, log_name: str) -> None:
    run(
        embedded,
        """
        writer = LogWriter.open(bk, name, roll_max_entries=5)
        atexit.register(bk.close)
        atexit.register(writer.close)
        for n in range(20):
            writer.append_future(b"%d" % n)
        """,
        log_name,
    )
    _, live, found = contents(embedded, log_name)
    assert live == 0 and found == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("what", ["ledger", "log", "reader", "follower"])
def test_what_nobody_closes_holds_nobody_up(embedded: LocalCluster, log_name: str, what: str) -> None:
    """Also while it is at work."""
    run(
        embedded,
        f"what = {what!r}\n"
        + textwrap.dedent(
            """
            def follow():
                for run in LogReader(bk, name).follow():
                    pass
            if what == "ledger":
                ledger = bk.create_ledger()
                futures = [ledger.append_future(b"x" * 1000) for n in range(2000)]
            elif what == "log":
                writer = LogWriter.open(bk, name, roll_max_entries=10, roll_max_s=0.2)
                for n in range(200):
                    writer.append_future(b"x")
            elif what == "reader":
                ledger = bk.create_ledger()
                ledger.append(b"x")
                tail = bk.open_ledger(ledger.ledger_id).tail()
                next(tail)
            else:
                threading.Thread(target=follow, daemon=True).start()
                LogWriter.open(bk, name).append(b"x")
            """
        ),
        log_name,
    )


OWNER = """
if how == "atexit":  # before the module of bk:// is imported
    atexit.register(lambda: fs.pipe_file("/x", b"x" * 100))
from bk_core.client.files.fs import BookKeeperFileSystem
fs = BookKeeperFileSystem(uri, name, mode="rw", skip_instance_cache=how == "dropped")
fs.pipe_file("/large", b"y" * 200_000)
if how != "atexit":
    fs.pipe_file("/x", b"x" * 100)
if how == "dropped":
    del fs
"""
OTHER = """
from bk_core.client.files.fs import BookKeeperFileSystem
for mode in ("r", "rw"):
    fs = BookKeeperFileSystem(uri, name, mode=mode)
    print(fs.cat("/x") == b"x" * 100 and fs.cat("/large") == b"y" * 200_000)
"""


@pytest.mark.parametrize("how", ["open", "dropped", "atexit"])
def test_a_process_that_ends_closes_the_file_stores_that_it_owns(embedded: LocalCluster, how: str) -> None:
    """So a view sees its last change at once, and an owner of any host is let in."""
    name = uuid.uuid4().hex
    before = f"how = {how!r}\nimport atexit, fsspec\n" if how != "atexit" else f"how = {how!r}\nimport atexit, bk_core, fsspec\n"
    assert run(embedded, OWNER, name, before).lines == []
    with bk_core.connect(embedded.uri) as bk:
        assert file_store_owner(bk, name) is None
    assert run(embedded, OTHER, name).lines == ["True", "True"]
    with bk_core.connect(embedded.uri) as bk:
        assert file_store_owner(bk, name) is None


@pytest.mark.parametrize("step", ["writer.append(b'x')", "bk.create_ledger()", "ledger.read(0, 0)", "list(bk.list_ledgers())"])
def test_a_daemon_that_goes_on_asking_while_the_process_ends_says_nothing(embedded: LocalCluster, step: str) -> None:
    """Between the end of the clients and that of the interpreter runs what was given to ``atexit`` before they were."""
    run(
        embedded,
        f"""
        with bk.create_ledger() as closed:
            closed.append(b"x")
        ledger = bk.open_ledger(closed.ledger_id)
        writer = bk.create_ledger()
        asked = threading.Event()
        def ask():
            while True:
                {step}
                asked.set()
        threading.Thread(target=ask, daemon=True).start()
        asked.wait()
        """,
        before="import atexit, time\natexit.register(time.sleep, 0.5)\n",
    )


@pytest.mark.parametrize("where", ["at the end", "in a cycle", "on its own thread"])
def test_a_destructor_may_close_the_client(embedded: LocalCluster, where: str) -> None:
    """Python runs it wherever it is: on a thread of the client itself, or when all threads stand still already."""
    run(
        embedded,
        f"where = {where!r}\n"
        + textwrap.dedent(
            """
            import gc, time
            class Owner:
                def __init__(self):
                    self.bk = bk_core.connect(uri)
                    self.ledger = self.bk.create_ledger()
                    self.ledger.append(b"x")
                    self.me = self
                def __del__(self):
                    started = time.monotonic()
                    self.bk.close()
                    if time.monotonic() - started > 5:
                        print("it took too long", file=sys.stderr)
            owner = Owner()
            if where == "in a cycle":
                del owner
                gc.collect()
            elif where == "on its own thread":
                collected = threading.Event()
                session = owner.bk._shared
                del owner
                session.reactor.post(lambda: (gc.collect(), collected.set()))
                assert collected.wait(30)
                session._metadata._threads[0].join(30)
                assert not session._metadata._threads[0].is_alive()
            """
        ),
    )
