"""A process at its limit of file descriptors: a program of its own, with a small RLIMIT_NOFILE, against real bookies."""

from __future__ import annotations

import subprocess
import sys

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from tests.integration.conftest import OURS_ARE_DEEP

PATIENCE_S = 240

PROGRAM = """
import os, resource, sys, threading, time
from contextlib import ExitStack
import bk_core
from bk_core.errors import BkError, LocalResourceError
from bk_core.protocol.limits import Limits

uri, ledger_id = sys.argv[1], int(sys.argv[2])
LIMIT = 128
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
taken, none_left, wanted = [], threading.Event(), threading.Event()
wanted.set()

def take():
    while wanted.wait() or True:  # also what others of this process let go of, as its connections to ZooKeeper
        try:
            with lock:
                if wanted.is_set():
                    taken.append(os.dup(2))
        except OSError:
            none_left.set()
            time.sleep(0.001)

lock = threading.Lock()
hog = threading.Thread(target=take, daemon=True)

def take_all():
    none_left.clear()
    wanted.set()
    assert none_left.wait(60)

def give_back():
    with lock:
        wanted.clear()
        while taken:
            os.close(taken.pop())

def is_told(call):
    while True:  # the test has a deadline
        try:
            call()
            return False
        except LocalResourceError as error:
            assert f"all {LIMIT}" in str(error) and "EMFILE" in str(error) and "ulimit -n" in str(error), error
            print(error, file=sys.stderr)
            return True
        except BkError as error:  # a descriptor that somebody let go of was free when the reason was looked for
            print(error, file=sys.stderr)

with ExitStack() as stack, bk_core.connect(uri, limits=Limits(add_timeout_ns=60 * 10**9)) as bk:
    reader, writer = bk.open_ledger(ledger_id), bk.create_ledger()
    # Several: on a busy machine one of them may get a descriptor that a connection to ZooKeeper has let go of, and keep it.
    hasty = [stack.enter_context(bk_core.connect(uri, operation_timeout_s=8.0)) for _ in range(4)]
    handles = [client.open_ledger(ledger_id) for client in hasty]
    hog.start()
    take_all()
    late = next(handle for handle in handles if is_told(lambda: handle.read(0, 2)))  # SES-10
    while not is_told(lambda: bk_core.connect(uri).close()):
        pass
    assert not any(client._session._avoided() for client in hasty), "SES-9"

    results = {}
    def append():
        try:
            results["entry"] = writer.append(b"x")
        except BaseException as error:
            results["entry"] = error
    def read():
        try:
            results["read"] = reader.read(0, 2)
        except BaseException as error:
            results["read"] = error
    threads = [threading.Thread(target=call) for call in (append, read)]
    tries = threading.Event()
    resolve = bk._session._resolver.resolve
    def resolving(*args):
        tries.set()
        resolve(*args)
    bk._session._resolver.resolve = resolving
    for thread in threads:
        thread.start()
    assert tries.wait(60)
    give_back()
    for thread in threads:
        thread.join()
    assert results == {"entry": 0, "read": [b"0", b"1", b"2"]}, results
    assert len(writer.metadata.fragments) == 1 and not bk._session._avoided(), "SES-9"
    assert late.read(0, 2) == [b"0", b"1", b"2"], "at the first try"
    writer.close()
    with bk_core.connect(uri) as another:
        assert another.open_ledger(ledger_id).read(0, 0) == [b"0"]
print("well")
"""


@OURS_ARE_DEEP
def test_a_process_without_descriptors_says_so_and_blames_no_bookie(cluster: LocalCluster) -> None:
    """SES-9, SES-10: reads and `connect` name the limit; an append outlives it; with descriptors everything works on at once."""
    with bk_core.connect(cluster.uri) as bk, bk.create_ledger() as ledger:
        for entry in range(3):
            ledger.append(b"%d" % entry)
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM, cluster.uri, str(ledger.ledger_id)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
