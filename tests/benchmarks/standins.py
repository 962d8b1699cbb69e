"""Bookie stand-ins in a real ZooKeeper: *acknowledging sinks* and *replaying sources*, so that a client itself is measured.

``standins()`` looks like a cluster to every client: registered bookies, real ledger metadata. A sink acknowledges every add and forgets it.
A source keeps in memory what is written to it and replays it: entries, digests and LACs are those of a real writer, so nothing tells a
reader that this is no bookie. One C process per bookie, compiled at first use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bk_core.bookie.apache import cache_directory
from bk_core.bookie.children import Child, free_port
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.metadata import open_store

KEPT_BYTES = 3 << 30  # per source
_SOURCE = Path(__file__).parent / "standin"
_START_TIMEOUT_S = 10.0


def build() -> Path:
    """The program, compiled by the machine's compiler (``$CC`` or ``cc``) unless it is there already. RuntimeError with its words."""
    sources = sorted(_SOURCE.glob("*.[ch]"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = cache_directory() / "standin" / version / "standin"
    if program.is_file():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    beside = program.with_name(f"standin-{os.getpid()}")
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(beside)]
    done = subprocess.run([*command, *(str(p) for p in sources if p.suffix == ".c")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the bookie stand-in does not compile:\n{done.stderr[-2000:]}")
    beside.replace(program)
    return program


@dataclass(frozen=True, slots=True)
class StandIns:
    """``uri`` is what clients take; ``pids`` are the stand-ins' processes, one per bookie."""

    uri: str
    pids: Sequence[int]
    bookie_ids: Sequence[str]
    zookeeper_pid: int | None


@contextmanager
def standins(bookies: int = 3, *, keep: bool = False, kept_bytes: int = KEPT_BYTES) -> Iterator[StandIns]:
    """Sinks, or with ``keep`` sources, which refuse adds beyond ``kept_bytes`` each."""
    program = build()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="bk-standins-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        zookeeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper"))
        uri = f"zk://{zookeeper.connect_string}/ledgers"
        store = open_store(uri)
        stack.callback(store.close)
        store.initialize_cluster()
        pids, ids = [], []
        for index in range(bookies):
            port = free_port()
            ready = directory / f"ready-{index}"
            command = [str(program), str(port), *([str(kept_bytes)] if keep else [])]
            child = Child(f"stand-in {index}", command, directory / f"standin-{index}.log", stdout=ready)
            stack.callback(child.stop)
            child.wait_until(lambda ready=ready: b"READY" in ready.read_bytes(), _START_TIMEOUT_S)  # type: ignore[misc]
            ids.append(f"127.0.0.1:{port}")
            stack.callback(store.register_bookie(ids[-1], "127.0.0.1", port).close)
            pids.append(child.pid)
        yield StandIns(uri, pids, ids, zookeeper.pid)
