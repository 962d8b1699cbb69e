"""The owner of a file store on Apache's bookies and ZooKeeper: killed, taken over while it works, and with a bookie that goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.files.imports import is_of_import
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.history import read_log
from bk_core.errors import FileStoreTakenOverError
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.embedded import eventually
from tests.integration.file_owner import content, parts

pytestmark = pytest.mark.apache
ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20


@pytest.fixture
def client(apache_cluster: LocalCluster) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(apache_cluster.uri) as bk:
        yield bk


class Told:
    """The words of an owner. ``allowed``: by path, every size that the file may have (-1: there is none)."""

    def __init__(self) -> None:
        self.allowed: dict[str, set[int]] = {}
        self.acknowledged = 0

    def read(self, lines: list[str]) -> None:
        for line in lines:
            what, path, size = line.split()
            if what == "!":
                self.allowed[path] = {int(size)}
                self.acknowledged += 1
            else:
                self.allowed.setdefault(path, {-1}).add(int(size))


def found(store: bk_core.FileStore) -> dict[str, int]:
    return {file.path: file.size for directory in store.listing("/") for file in store.listing(directory.path)}


def check_ledgers(client: bk_core.BookKeeper, store: bk_core.FileStore, log: str) -> None:
    """The store has the ledgers that its log lists and those that files are in, all CLOSED but the log's last."""
    referred = {extent.ledger_id for path in found(store) for extent in store.content(path).extents}
    assert eventually(lambda: {node.ledger_id for node in data_nodes(client, log)} == referred, 30)
    assert eventually(lambda: all(client.ledger_metadata(one).state is LedgerState.CLOSED for one in referred), 30)

    def named_beside() -> set[int]:
        listed = {segment.ledger_id for segment in read_log(client, log).segments()}
        there = {one for one in client.list_ledgers() if client.ledger_metadata(one).custom.get("log") == log.encode()}
        return there ^ (listed | referred)

    assert eventually(lambda: not named_beside(), 30), named_beside()  # an owner that found many segments trims them after it serves


def test_an_owner_that_is_killed_loses_nothing(apache_cluster: LocalCluster, client: bk_core.BookKeeper) -> None:
    """kill -9 at some moment, again and again: what was acknowledged is there, every file is one whole content, no ledger is left over."""
    told = Told()
    for round_ in range(3):
        command = [sys.executable, "-m", "tests.integration.file_owner", apache_cluster.uri, "killed", str(round_)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
            assert owner.stdout is not None
            lines = [owner.stdout.readline()]
            killer = threading.Timer(0.7 + 0.4 * round_, owner.kill)
            killer.start()
            lines += owner.stdout.readlines()
            killer.join()
        told.read([line for line in lines if line.endswith("\n")])
        began = time.monotonic()
        with bk_core.FileStore.open(client, "killed") as store:
            print(f"opened in {time.monotonic() - began:.3f} s behind {told.acknowledged} changes of {len(lines)} lines")
            there = found(store)
            for path, allowed in told.allowed.items():
                assert there.get(path, -1) in allowed, path
                if path in there:
                    assert b"".join(store.chunks(path)) == content(path, there[path]), path
            assert set(there) <= set(told.allowed)
            check_ledgers(client, store, "files.killed")
        told.allowed = {path: {size} for path, size in there.items()}
    assert told.acknowledged > 20


def test_an_owner_that_lives_is_taken_over(apache_cluster: LocalCluster, client: bk_core.BookKeeper) -> None:
    """Another process takes the store, in the middle of changes and of a stage: the old owner ends, and no byte of it gets into a file."""
    ended = threading.Event()
    staged_some, go_on = threading.Event(), threading.Event()
    outcomes: list[tuple[str, bool]] = []

    def source() -> Iterator[bytes]:
        yield from parts(content("/staged", 8 * MB))
        staged_some.set()
        assert go_on.wait(60)
        yield from parts(content("/staged", 8 * MB))

    with bk_core.connect(apache_cluster.uri) as old_client:
        old = bk_core.FileStore.open(old_client, "taken", on_end=lambda error: ended.set())

        def stage() -> None:
            with pytest.raises(FileStoreTakenOverError):
                old.put("/staged", source())

        def change() -> None:
            try:
                for n in range(100_000):
                    outcomes.append((f"/small/{n}", False))
                    old.put(f"/small/{n}", b"%d" % n)
                    outcomes[-1] = (f"/small/{n}", True)
            except FileStoreTakenOverError:
                pass

        threads = [threading.Thread(target=work) for work in (stage, change)]
        for thread in threads:
            thread.start()
        assert staged_some.wait(60) and eventually(lambda: len(outcomes) > 20, 60)
        with bk_core.FileStore.open(client, "taken") as new:
            assert ended.wait(60)
            go_on.set()
            for thread in threads:
                thread.join(60)
            small = {file.path for file in new.listing("/small")}
            assert {path for path, acknowledged in outcomes if acknowledged} <= small <= {path for path, _ in outcomes}
            assert not new.exists("/staged")
            old.close()
        with bk_core.FileStore.open(client, "taken") as new:
            check_ledgers(client, new, "files.taken")


def test_a_bookie_that_goes_while_files_are_written(apache_cluster: LocalCluster, client: bk_core.BookKeeper) -> None:
    """Ledgers on two of three bookies, both of which acknowledge: one that bytes of a file go to goes for good, and all goes on."""
    gone: list[int] = []

    def source() -> Iterator[bytes]:
        for number, part in enumerate(parts(content("/big", 12 * MB))):
            if number == 20:
                (node,) = data_nodes(client, "files.bookie")
                gone.append(apache_cluster.bookie_ids.index(client.ledger_metadata(node.ledger_id).last_fragment.ensemble[0]))
                apache_cluster.kill(gone[0])
            yield part

    quorums = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
    with bk_core.FileStore.open(client, "bookie", **quorums) as store:
        store.put("/before", content("/before", MB))
        store.put("/big", source())
        for n in range(20):
            store.put(f"/{n}", b"%d" % n)
    with bk_core.FileStore.open(client, "bookie") as store:
        assert gone and not apache_cluster.is_running(gone[0])
        assert store.read("/before") == content("/before", MB) and store.read("/big") == content("/big", 12 * MB)
        assert store.read("/19") == b"19"


# --- imports of checkpoints ----------------------------------------------------------------------------------------------


def bk(cluster: LocalCluster, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "bk_core.cli", "checkpoint", *map(str, arguments), "--uri", cluster.uri]


def a_checkpoint(folder: Path, text: bytes) -> dict[str, bytes]:
    """Some small files and large ones, each with contents of its own."""
    files = {f"/{name}/{number}": b"%b %d " % (text, number) for name in ("offsets", "commits") for number in range(60)}
    files |= {f"/state/0/{number}.delta": b"%b %d " % (text, number) * 20_000 for number in range(6)}
    for path, data in files.items():
        place = folder / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return files


def files_of(client: bk_core.BookKeeper, name: str) -> dict[str, bytes]:
    with FileStoreView.open(client, name) as view:
        return {one.path: view.read_content(content) for one, content in view.everything() if content is not None}


def kill_behind(command: list[str], client: bk_core.BookKeeper, name: str, files: int) -> bool:
    """kill -9 once an import that this command makes has put that many files. It may have gone on when the signal comes; False if it was
    done by then."""
    with FileStoreView.open(client, name) as view, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while sum(content is not None and is_of_import(one.path) for one, content in view.everything()) < files and process.poll() is None:
            assert time.monotonic() < deadline
            view.wait(1)
            view.refresh()
        process.kill()
        return process.wait() == -signal.SIGKILL


@pytest.mark.deep
def test_a_checkpoint_whose_replacement_is_killed_is_whole(
    apache_cluster: LocalCluster, client: bk_core.BookKeeper, tmp_path: Path
) -> None:
    """kill -9 at two moments of copying: readers see the old files, as does the next owner, and gc leaves nothing else. Then about when
    the new files take the place of the old ones, which is one change."""
    old, new = a_checkpoint(tmp_path / "old", b"old"), a_checkpoint(tmp_path / "new", b"new")
    subprocess.run(bk(apache_cluster, "import", "torn", tmp_path / "old"), cwd=ROOT, check=True)
    replacing = bk(apache_cluster, "import", "torn", tmp_path / "new", "--replace", "--yes")
    for files in (1, 60):
        assert kill_behind(replacing, client, "torn", files)
        seen = files_of(client, "torn")
        assert {path: data for path, data in seen.items() if not is_of_import(path)} == old and len(seen) >= len(old) + files
        subprocess.run(bk(apache_cluster, "gc", "torn"), cwd=ROOT, check=True)
        assert files_of(client, "torn") == old
    for files in (len(new) - 1,):
        kill_behind(replacing, client, "torn", files)
        subprocess.run(bk(apache_cluster, "gc", "torn"), cwd=ROOT, check=True)
        assert files_of(client, "torn") in (old, new)
    assert kill_behind(replacing, client, "torn", 40)
    subprocess.run(replacing, cwd=ROOT, check=True)
    assert files_of(client, "torn") == new
    with FileStoreView.open(client, "torn") as view:
        assert {node.ledger_id for node in data_nodes(client, "files.torn")} == view.ledgers()
