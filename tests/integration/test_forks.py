"""A process that forks while a client is at work: the child is told so at once, and nothing that it does disturbs the parent.

Parent and child share sockets, the reactor's epoll and the wake-up's file, so the parent goes on writing and reading beside its children.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties

TIMEOUT_S = 120

PARENT = """
import multiprocessing, os, signal, sys, threading, time, traceback
import bk_core
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import trim_log
from bk_core.errors import BkError, ForkedClientError

uri, name, how = sys.argv[1:]
bk = bk_core.connect(uri)
with bk.create_ledger() as done:
    done.append_many([b"%d" % n for n in range(100)])
live = bk.create_ledger()
log = LogWriter.open(bk, name)
reader, closed = bk.open_ledger(live.ledger_id), bk.open_ledger(done.ledger_id)
log_reader = LogReader(bk, name)
stop, failed, written = threading.Event(), [], []

def work():
    try:
        while not stop.is_set():
            live.append(b"x")
            written.append(b"%d" % len(written))
            log.append(written[-1])
            assert len(closed.read(0, 99)) == 100
            bk.ledger_metadata(done.ledger_id)
    except BaseException:
        failed.append(traceback.format_exc())

def follow():
    try:
        for run in reader.tail():
            pass
    except BaseException:
        failed.append(traceback.format_exc())

calls = [
    lambda: live.append(b"child"), lambda: live.append_future(b"child"), lambda: live.append_many([b"child"]),
    lambda: live.append_many_future([b"child"]), live.flush, live.force,
    lambda: log.append(b"child"), lambda: log.append_future(b"child"), lambda: log.append_many([b"child"]), log.flush, log.roll,
    lambda: closed.read(0, 9), lambda: list(reader.tail()), lambda: reader.wait_for(10**6, 30),
    reader.read_last_add_confirmed, reader.refresh,
    lambda: list(log_reader.read()), lambda: log_reader.wait(30), lambda: list(log_reader.follow()),
    bk.create_ledger, lambda: bk.open_ledger(done.ledger_id), lambda: bk.recover_ledger(live.ledger_id),
    lambda: bk.delete_ledger(done.ledger_id), lambda: list(bk.list_ledgers()), bk.bookies, lambda: bk.check_ledger(done.ledger_id),
    lambda: LogWriter.open(bk, name), lambda: LogReader(bk, name), lambda: read_log(bk, name), lambda: trim_log(bk, name, before_ms=1),
]

def child():
    started = time.monotonic()
    for number, call in enumerate(calls):
        try:
            call()
        except ForkedClientError as error:
            assert str(os.getpid()) in str(error) and str(os.getppid()) in str(error) and "connect again" in str(error), error
        else:
            raise AssertionError(f"call {number} did something in the child")
    for call in (live.close, live.abandon, log.close, log.abandon, reader.close, log_reader.close, bk.close, bk.close):
        call()
    with live, log, reader, bk:
        pass
    assert time.monotonic() - started < 20
    with bk_core.connect(uri) as own, own.open_ledger(done.ledger_id) as again:
        assert len(again.read(0, 99)) == 100

def forked(end):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        child()
        status = 0
    except BaseException:
        traceback.print_exc()
    if end == "exit":
        os._exit(status)
    sys.exit(status)  # what was given to atexit runs, and everything is torn down

threads = [threading.Thread(target=work), threading.Thread(target=follow)]
for thread in threads:
    thread.start()
for _ in range(5):
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(100)
        assert process.exitcode == 0, process.exitcode
    else:
        assert os.waitpid(forked(how), 0)[1] == 0
    before = len(written)
    deadline = time.monotonic() + 60
    while len(written) < before + 5 and not failed:
        assert time.monotonic() < deadline, "the parent stands still"
        time.sleep(0.005)
stop.set()
threads[0].join(60)
live.close()
threads[1].join(60)
log.close()
bk.close()
assert not failed and not any(thread.is_alive() for thread in threads), failed
print(live.ledger_id, len(written))
"""


@pytest.mark.parametrize("how", ["exit", "sys.exit", "multiprocessing"])
def test_forked_children_are_told_and_disturb_nothing(running_clusters: Callable[[str], LocalCluster], how: str) -> None:
    cluster, name = running_clusters("embedded"), f"log-{uuid.uuid4().hex[:12]}"
    with bk_core.connect(cluster.uri) as bk:
        create_log(bk, name, LogProperties(entry_format="raw"))
        command = [sys.executable, "-W", "error", "-X", "faulthandler", "-c", PARENT, cluster.uri, name, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        ledger_id, count = map(int, done.stdout.split())
        assert bk.ledger_metadata(ledger_id).state is LedgerState.CLOSED
        with bk.open_ledger(ledger_id) as ledger:
            assert set(ledger.read(0, ledger.last_add_confirmed)) == {b"x"}
        with LogReader(bk, name) as reader:
            assert [payload for run in reader.read() for payload in run.payloads()] == [b"%d" % n for n in range(count)]


CLUSTER = """
import os, sys, traceback
import bk_core
from bk_core.errors import ForkedClientError
cluster = bk_core.local_cluster(1, sys.argv[1])
for how in ("exit", "sys.exit", "close"):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            if how == "close":
                with cluster:
                    cluster.close()
                for call in (lambda: cluster.kill(0), lambda: cluster.stop_bookie(0), lambda: cluster.restart(0), cluster.add_bookie):
                    try:
                        call()
                    except ForkedClientError:
                        continue
                    raise AssertionError("it did something in the child")
            status = 0
        except BaseException:
            traceback.print_exc()
        (os._exit if how == "exit" else sys.exit)(status)
    assert os.waitpid(pid, 0)[1] == 0, how
    assert cluster.is_running(0)
    with bk_core.connect(cluster.uri) as bk, bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
        ledger.append(b"x")
lives_on, end = os.fork(), None  # a child that outlives the cluster keeps nobody from starting it again
if not lives_on:
    sys.stdin.read()
    os._exit(0)
cluster.close()
bk_core.local_cluster(1, sys.argv[1]).close()
print(lives_on)
"""


def test_a_forked_child_ends_no_local_cluster(tmp_path: object, running_clusters: Callable[[str], LocalCluster]) -> None:
    running_clusters("embedded")  # skips where there is no Java
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(CLUSTER), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None and process.stderr is not None
        told = process.stdout.readline()
        process.stdin.close()  # ends the child that lives on
        errors = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 0 and errors == "" and int(told) != os.getpid(), errors
