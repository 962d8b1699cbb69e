"""A Ctrl-C that comes in the last moment before a wait ends the wait all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("late_signal.c")
LONG_S = 600  # far longer than the test may take
PROGRAM = f"""
import ctypes, signal, sys, threading
import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.metadata import open_store
from bk_core.protocol.log.segments import LogProperties
from bk_core.threads import Flag, Monitor, SafeFuture, join

def the_next_wait_is_late():
    ctypes.c_int.in_dll(ctypes.CDLL(None), "late_signal").value = signal.SIGINT

def monitor():
    own = Monitor()
    with own:
        own.wait()

def thread():
    lasting = threading.Thread(target=Flag().wait, daemon=True)
    lasting.start()  # which waits, too
    the_next_wait_is_late()
    join(lasting)

def log():
    store = open_store("memory://late")
    store.initialize_cluster()
    EmbeddedBookie(sys.argv[1], "127.0.0.1", 0, store).start()
    with bk_core.connect("memory://late", operation_timeout_s={LONG_S}) as bk:
        create_log(bk, "a", LogProperties(entry_format="raw", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1))
        writer = LogWriter.open(bk, "a", outstanding_bytes_max=10)
        busy, go_on = threading.Event(), threading.Event()
        bk._session.reactor.post(lambda: (busy.set(), go_on.wait()))
        busy.wait()
        writer.append_future(b"x" * 10)
        the_next_wait_is_late()
        try:
            writer.append(b"x" * 10)
        finally:
            go_on.set()

waits = {{
    "future": lambda: SafeFuture().result(),
    "future in time": lambda: SafeFuture().result({LONG_S}),
    "flag": lambda: Flag().wait({LONG_S}),
    "monitor": monitor,
    "bell": lambda: Monitor().until(lambda: False, {LONG_S}),
    "thread": thread,
    "log": log,
}}
"""
END = """
if {kind!r} not in ("log", "thread"):
    the_next_wait_is_late()
try:
    waits[{kind!r}]()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture(scope="module")
def late_signal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("late") / "late_signal.so"
    command = [os.environ.get("CC", "cc"), "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return library


@pytest.mark.skipif(sys.platform != "linux", reason="the library is preloaded, and knows the waits of glibc")
@pytest.mark.parametrize("kind", ["future", "future in time", "flag", "monitor", "bell", "thread", "log"])
def test_ctrl_c_in_the_last_moment_before_a_wait_is_heard(late_signal: Path, tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", PROGRAM + END.format(kind=kind), str(tmp_path)]
    environment = {**os.environ, "LD_PRELOAD": str(late_signal)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S / 4, check=False)
    assert done.stdout == "interrupted\n", done.stderr
