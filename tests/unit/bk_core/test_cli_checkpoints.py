"""``bk checkpoint`` against bookies in this process: what is printed, what is copied, what is refused, and what is left."""

from __future__ import annotations

import errno
import json
import os
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.cli import checkpoint_copies, checkpoints, queries
from bk_core.client.checkpoints import folders
from bk_core.client.checkpoints.batches import LocalFolder, StoreFolder, query_id, read_batch, read_offsets
from bk_core.client.files import store as store_module
from bk_core.client.files import upkeep
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import file_stores
from bk_core.client.files.view import FileStoreView
from bk_core.client.log import live_writers
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.lists import create_log
from bk_core.errors import (
    FileStoreError,
    InvalidArgumentError,
    NoSuchLedgerError,
)
from bk_core.protocol.files import machine
from bk_core.protocol.files.content import Content
from bk_core.protocol.log.segments import LogProperties
from tests.unit.bk_core.conftest import Bk

PLANNED_MS = 1_700_000_000_000
LARGE = bytes(range(256)) * (6 << 10)


def ours(rows: int) -> dict[str, Any]:
    return {"flights": {"logId": "x", "seq": 1, "entry": rows // 100, "row": rows % 100, "rows": rows, "bytes": rows * 10}}


def offsets(number: int, *sources: Any) -> str:
    lines = ["-" if source is None else json.dumps(source) for source in sources]
    return "\n".join(
        ["v1", json.dumps({"batchWatermarkMs": number and PLANNED_MS - 5000, "batchTimestampMs": PLANNED_MS + number}), *lines]
    )


def checkpoint(folder: Path, batches: int = 3, *, large: bytes = LARGE) -> Path:
    """As Spark makes one on a local file system: the last batch is planned and not committed."""
    files = {"metadata": b'{"id":"the-query"}', "state/0/0/1.delta": large, "sources/0/0": b"v1\n{}"}
    for number in range(batches):
        files[f"offsets/{number}"] = offsets(number, ours(number * 100), None if number == 0 else 17).encode()
        if number < batches - 1:
            files[f"commits/{number}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        (place.parent / f".{place.name}.crc").write_bytes(b"crc")
    (folder / "empty").mkdir()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_sums(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if not name.endswith(".crc")}


def test_a_checkpoint_goes_in_is_shown_and_comes_out(bk: Bk, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in")
    assert bk("import", "q", source).startswith(
        f"checkpoint q: 8 files, {sum(map(len, without_sums(source).values())):,} bytes copied from"
    )
    assert "8 check sums left out" in bk.out
    (line,) = bk.json("ls")
    times = {"committedAtMs": line["committedAtMs"]}
    size = sum(map(len, without_sums(source).values()))
    known = {"checkpoint": "q", "query": "the-query", "files": 8, "bytes": size, "plannedBatch": 2, "committedBatch": 1, "owner": None}
    assert line == {**known, **times} and line["committedAtMs"] > PLANNED_MS
    assert "1 checkpoint\n" in bk("ls") and "q" in bk.out
    assert [one["path"] for one in bk.json("ls", "q")] == ["/commits", "/empty", "/metadata", "/offsets", "/sources", "/state"]
    assert "1.delta" in bk("ls", "q", "state/0/0") and f"{len(LARGE):,}" in bk.out
    (shown,) = bk.json("show", "q")
    assert [(b["batch"], b["committed"], b["plannedMs"]) for b in shown["batches"]] == [
        (0, True, PLANNED_MS),
        (1, True, PLANNED_MS + 1),
        (2, False, PLANNED_MS + 2),
    ]
    assert shown["batches"][2]["sources"] == {"0": ours(200), "1": 17} and shown["batches"][0]["sources"]["1"] is None
    assert shown["batches"][0]["watermarkMs"] is None and shown["batches"][1]["watermarkMs"] == PLANNED_MS - 5000
    text = bk("show", "q", "-n", "2")
    assert "flights 1:2+0 (200 rows)" in text and "not yet" in text and "the-query" in text and "2023-11-14 22:13:20" in text
    assert "(0 rows)" not in text
    assert bk("cat", "q", "metadata") == '{"id":"the-query"}'
    bk("cat", "q", "/state/0/0/1.delta")
    assert bk.raw == LARGE
    (file,) = bk.json("cat", "q", "state/0/0/1.delta")
    assert b64decode(file["data"]) == LARGE and file["bytes"] == len(LARGE)
    assert f"8 files, {size:,} bytes copied to {tmp_path / 'out'}" in bk("export", "q", tmp_path / "out")
    assert contents(tmp_path / "out") == without_sums(source) and (tmp_path / "out" / "empty").is_dir()
    assert (tmp_path / "out" / "metadata").stat().st_mtime > PLANNED_MS / 1000
    for command in (["show"], ["cat", "metadata"], ["tail"], ["ls"], ["export", str(tmp_path / "x")], ["rm", "--yes"], ["gc"]):
        bk(command[0], "z", *command[1:], status=1)
        assert "[BK-FILES-NO-STORE]" in bk.err, command
    bk("cat", "q", "nothing", status=1)
    assert "[BK-FILES-NO-PATH]" in bk.err


def test_one_store_may_hold_several_checkpoints(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    """As Spark makes them below spark.sql.streaming.checkpointLocation, which is one place for all queries."""
    bk("import", "all", checkpoint(tmp_path / "in"))
    with FileStore.open(client, "all") as store:
        found = store.listing("/")
        store.mkdirs("/one")
        for status in found:
            store.rename(status.path, f"/one/{status.name}")
        store.put("/two/metadata", b'{"id":"second"}')
        store.put("/two/offsets/0", offsets(0, 5).encode())
    assert [(one["checkpoint"], one["query"], one["files"]) for one in bk.json("ls")] == [
        ("all/one", "the-query", 8),
        ("all/two", "second", 2),
    ]
    assert bk.json("show", "all/one")[0]["committedBatch"] == 1 and "second" in bk("show", "all/two/")
    assert [one["batch"] for one in bk.json("tail", "all/two", "-F")] == [0]
    bk("export", "all/one", tmp_path / "out")
    assert contents(tmp_path / "out") == without_sums(tmp_path / "in")
    bk("export", "all/two/metadata", tmp_path / "file", status=1)
    assert "[BK-FILES-NOT-DIRECTORY]" in bk.err
    for command in (["show"], ["export", str(tmp_path / "none")]):
        bk(command[0], "all/three", *command[1:], status=1)
        assert "[BK-FILES-NO-PATH]" in bk.err
    bk("rm", "all", status=1)
    assert "(10 files" in bk.err and "last batch 1, no batch" in bk.err


def test_an_import_does_not_touch_a_checkpoint_that_is_there(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metadata").write_text('{"id":"other"}')
    bk("import", "q", tmp_path / "other", status=1)
    assert "[BK-FILES-EXISTS]" in bk.err and "--replace" in bk.err
    bk("import", "q", tmp_path / "other", "--replace", status=1)
    assert "replace all files of checkpoint q?" in bk.err and bk.json("ls")[0]["query"] == "the-query"
    (told,) = bk.json("import", "q", tmp_path / "other", "--replace", "--yes")
    assert told == {"checkpoint": "q", "files": 1, "bytes": 14, "dropped": 0, "replaced": True}
    assert [one["path"] for one in bk.json("ls", "q")] == ["/metadata"]
    with FileStore.open(client, "q"):
        bk("import", "q", tmp_path / "other", "--replace", "--yes", status=1)
        assert "[BK-LOG-WRITER-ALIVE]" in bk.err
        bk("import", "q", tmp_path / "other", "--replace", "--yes", "--even-if-alive")


def test_what_cannot_be_a_checkpoint_is_refused(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    (tmp_path / "no").mkdir()
    bk("import", "q", tmp_path / "no", status=1)
    assert "is no checkpoint" in bk.err
    source = checkpoint(tmp_path / "in")
    (source / "link").symlink_to(source / "metadata")
    bk("import", "q", source, status=1)
    assert "neither a file nor a folder" in bk.err
    (source / "link").unlink()
    bk("import", "a/b", source, status=2)
    assert "this takes a whole checkpoint: a, not /b in it" in bk.err
    bk("import", "q", tmp_path / "nothing", status=2)
    assert file_stores(client) == []


def test_what_a_killed_import_had_left_in_the_folder_is_left_out(bk: Bk, tmp_path: Path) -> None:
    """A store that was copied by another tool has it in its root. Elsewhere a name like it is a file's as any other."""
    source, left = checkpoint(tmp_path / "in"), f".importing-{'0' * 32}"
    (source / left / "offsets").mkdir(parents=True)
    (source / left / "offsets/0").write_text("half")
    (source / "offsets" / left).write_text("whole")
    bk("import", "q", source)
    assert f"checkpoint q: {source / left} is left out: a killed import had left it there, and it is no part of the checkpoint" in bk.err
    assert bk.json("ls", "q") and all(left not in one["path"] for one in bk.json("ls", "q")) and bk.err == ""
    assert bk("cat", "q", f"offsets/{left}") == "whole"


def test_a_folder_that_the_system_refuses_is_told(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint(tmp_path / "in")
    bk("import", "q", source)
    long = tmp_path / ("x" * 300)
    bk("export", "q", long, status=1)
    assert bk.err == f"error: [BK-EXPORT-FILE] {long} cannot be written, so nothing was copied: File name too long\n"
    opened = Path.open

    def refused(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "metadata":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", refused)
    bk("import", "new", source, status=1)
    told = f"error: [BK-EXPORT-FILE] {source} cannot be read, so nothing was changed: Permission denied ({source / 'metadata'})"
    assert told in bk.err and file_stores(client) == ["q"]
    bk("export", "q", tmp_path / "out", status=1)
    assert f"[BK-EXPORT-FILE] {tmp_path / 'out'} cannot be written, so nothing was copied: Permission denied (" in bk.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bookies", "in"]

    def full(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "metadata":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", full)
    bk("export", "q", tmp_path / "out", status=1)
    assert "nothing was copied: No space left on device (" in bk.err and "). Make room there, or name a folder elsewhere" in bk.err


@pytest.mark.parametrize("existed", [False, True])
def test_nothing_is_left_of_an_import_that_failed(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """A file that turns out otherwise when it is read back, a checkpoint that goes on meanwhile, and Ctrl-C."""
    if existed:
        bk("import", "q", checkpoint(tmp_path / "before", 5))
    before = bk.json("ls", "q") if existed else None
    source = checkpoint(tmp_path / "in")

    def wrong(*_: Any) -> Iterator[bytes]:
        yield b"wrong"

    def changed(*asked: Any) -> Any:
        done = put_all(*asked)
        (source / "offsets" / "9").write_text("v1")
        return done

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    put_all = folders._put_all
    ways: list[tuple[Any, str, Any, int, str]] = [
        (FileStore, "chunks", wrong, 1, "was read back and is not the same"),
        (folders, "_put_all", changed, 1, "was changed while it was copied"),
        (FileStore, "replace_all", interrupted, 130, "interrupted"),
        (folders, "_local_chunks", interrupted, 130, "interrupted"),
    ]
    for place, name, broken, status, said in ways:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, broken)
            bk("import", "q", source, *(["--replace", "--yes"] if existed else []), status=status)
        assert said in bk.err
        if existed:
            assert bk.json("ls", "q") == before
        else:
            assert file_stores(client, remains=True) == [] and list(client.list_ledgers()) == []
    bk("import", "q", source, *(["--replace", "--yes"] if existed else []))
    assert bk.json("ls")[0]["plannedBatch"] == 9


def test_an_export_writes_no_half_and_over_nothing(bk: Bk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    for taken in (tmp_path / "full", tmp_path / "full" / "x", tmp_path / "nowhere" / "out"):
        bk("export", "q", taken, status=1)
        assert "[BK-ARGUMENT]" in bk.err

    def wrong(*_: Any) -> Iterator[bytes]:
        yield b"wrong"

    with monkeypatch.context() as patched:
        patched.setattr(FileStoreView, "content_chunks", wrong)
        bk("export", "q", tmp_path / "out", status=1)
    assert "was read back" in bk.err
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", lambda *_args, **_options: (_ for _ in ()).throw(OSError("disk full")))
        bk("export", "q", tmp_path / "out", status=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bookies", "full", "in"]
    (tmp_path / "empty").mkdir()
    bk.json("export", "q", tmp_path / "empty")
    assert contents(tmp_path / "empty") == without_sums(tmp_path / "in")


def test_an_export_begins_again_when_the_checkpoint_went_on(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a file that is gone since it was looked at are deleted; what comes out is of one moment all the same."""
    bk("import", "q", checkpoint(tmp_path / "in"))
    read, looked = FileStoreView.content_chunks, []

    def chunks(view: FileStoreView, content: Content) -> Iterator[bytes]:
        if content.extents and not looked:
            looked.append(content)
            with FileStore.open(client, "q") as store:
                store.put("/state/0/0/1.delta", b"short")
            with suppress(NoSuchLedgerError):  # the owner deletes it too
                client.delete_ledger(content.extents[0].ledger_id, even_if_listed=True)
        return read(view, content)

    monkeypatch.setattr(FileStoreView, "content_chunks", chunks)
    bk("export", "q", tmp_path / "out")
    assert (tmp_path / "out" / "state" / "0" / "0" / "1.delta").read_bytes() == b"short"
    with FileStore.open(client, "q") as store:
        store.put("/state/0/0/2.delta", LARGE)
        (extent,) = store.content("/state/0/0/2.delta").extents
    client.delete_ledger(extent.ledger_id, even_if_listed=True)
    bk("export", "q", tmp_path / "lost", status=1)
    assert "[BK-FILES-DATA-LOST]" in bk.err and not (tmp_path / "lost").exists()


def test_a_bar_is_shown_where_there_is_a_terminal(bk: Bk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []
    bar = checkpoint_copies.progress_bar
    monkeypatch.setattr(
        checkpoint_copies, "progress_bar", lambda *columns, disable: (shown.append(not disable), bar(*columns, disable=True))[1]
    )
    monkeypatch.setattr(checkpoint_copies, "_BAR_BYTES", 1)
    bk("import", "q", checkpoint(tmp_path / "in"))
    monkeypatch.setattr(checkpoint_copies, "_is_terminal", lambda: True)
    bk("export", "q", tmp_path / "out")
    assert shown == [False, True]


def test_one_of_a_kind_is_told_as_one(bk: Bk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "metadata").write_bytes(b"x")
    (tmp_path / "in" / ".metadata.crc").write_bytes(b"crc")
    assert bk("import", "q", tmp_path / "in") == f"checkpoint q: 1 file, 1 byte copied from {tmp_path / 'in'} (1 check sum left out)\n"
    assert bk("export", "q", tmp_path / "out") == f"checkpoint q: 1 file, 1 byte copied to {tmp_path / 'out'}\n"
    assert bk("ls").endswith("\n1 checkpoint\n")
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    bk("rm", "q")
    assert "(1 file, 1 byte, no batch)" in bk.err


def test_how_long_a_batch_took_is_told_only_where_its_files_tell_it(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a copy have the time of the copy, and the owner's clock may be another one than that of the driver."""

    def told(name: str, number: int) -> str:
        (row,) = [line for line in bk("show", name).splitlines() if line.startswith(f"    {number}")]
        (line,) = [line for line in bk("tail", name, "-F").splitlines() if line.startswith(f"batch {number} ")]
        cell = row.split()[5]
        assert line.split()[2:4] == (["committed", "in"] if cell != "-" else ["committed", "0:"]), line
        assert cell == "-" or line.split()[4:6] == [cell, "s"]
        return cell

    clock = [PLANNED_MS]
    with monkeypatch.context() as patched, FileStore.open(client, "q") as store:
        patched.setattr(store_module, "now_ms", lambda: clock[0])
        patched.setattr(machine.FileMachine, "_time", lambda self, ms: ms)  # as in a store from before FS-21
        # Milliseconds from the planning of a batch to its offsets, and to its commit: written by the driver, by an owner whose clock is
        # 5 s late, copied an hour later, copied at once, and copied with the commits first.
        for number, (planned, committed) in enumerate([(3, 2503), (-5000, -3000), (3_600_000, 3_600_001), (9000, 9000), (9001, 9000)]):
            for folder, ms in (("offsets", planned), ("commits", committed)):
                clock[0] = PLANNED_MS + number + ms
                store.put(f"/{folder}/{number}", offsets(number, 17).encode())
    assert [told("q", number) for number in range(5)] == ["2.5", "2.0", "-", "-", "-"]
    bk("import", "copy", checkpoint(tmp_path / "in"))
    assert told("copy", 1) == "-"
    with FileStoreView.open(client, "q") as view:
        assert [read_batch(StoreFolder(view), 0, committed=done).took_ms for done in (True, False)] == [2500, None]


# --- tail ----------------------------------------------------------------------------------------------------------------


def test_tail_tells_what_happens(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"))
    assert [(one["batch"], one["committed"]) for one in bk.json("tail", "q", "--no-follow", "-n", "2")] == [(1, True), (2, False)]
    assert bk("tail", "q", "-F", "-n", "0") == ""
    lines = bk("tail", "q", "-F").splitlines()
    assert (
        len(lines) == 3
        and "committed  " in lines[0]
        and "planned 2023-11-14" in lines[2]
        and "0: flights 1:2+0 (200 rows)  1: 17" in lines[2]
    )
    told: list[tuple[int, bool]] = []
    ready = threading.Event()

    def say(batch: Any) -> None:
        told.append((batch.number, batch.committed))
        if told[-1] == (2, False):
            ready.set()
        if told[-1] == (3, True):
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "_say_batch", say)

    def go_on() -> None:
        assert ready.wait(60)
        with FileStore.open(client, "q") as store:
            store.put("/commits/2", b"v1\n{}")
            store.put("/offsets/3", offsets(3, ours(300)).encode())
            store.delete("/offsets/0")  # Spark forgets old batches
            store.delete("/commits/0")
            store.put("/commits/3", b"v1\n{}")

    spark = threading.Thread(target=go_on)
    spark.start()
    bk("tail", "q", "-n", "1", status=130)
    spark.join()
    assert told[0] == (2, False) and told[-1] == (3, True) and (2, True) in told
    assert all(number > 1 for number, _ in told)


# --- rm, gc, owners ------------------------------------------------------------------------------------------------------


def test_an_owner_is_shown_and_keeps_its_checkpoint(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"))
    store = FileStore.open(client, "q")
    (line,) = bk.json("ls")
    assert (line["owner"]["state"], line["owner"]["pid"]) == ("alive", os.getpid())
    assert f":{os.getpid()}" in bk("ls") and f":{os.getpid()}" in bk("show", "q")
    bk("rm", "q", "--yes", status=1)
    assert "[BK-LOG-WRITER-ALIVE]" in bk.err and "--even-if-alive" in bk.err
    bk("gc", "q", status=1)
    assert "[BK-LOG-WRITER-ALIVE]" in bk.err
    assert bk("gc") == "" and "left out" in bk.err
    bk("gc", "--even-if-alive", status=2)
    store.abandon()
    monkeypatch.setattr(live_writers, "lives_here", lambda _writer: False)
    assert "(perhaps gone)" in bk("ls")
    with monkeypatch.context() as patched:
        patched.setattr(live_writers, "_custom", lambda *_: {})
        assert "not named" in bk("ls")
    monkeypatch.setattr(live_writers, "abandoned", lambda _writer: True)
    assert "(gone)" in bk("ls")
    assert bk.json("gc", "q") == [{"checkpoint": "q", "deleted": [], "left": [], "imports": 0, "isGone": False, "finished": 0}]
    bk("rm", "q", status=1)
    assert "delete checkpoint q (8 files" in bk.err and "last batch 1" in bk.err
    assert bk.json("rm", "q", "--yes")[0]["deleted"] is True
    assert "0 checkpoints" in bk("ls") and file_stores(client, remains=True) == [] and list(client.list_ledgers()) == []


def test_gc_looks_at_all_and_tells_what_it_could_not_do(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"))
    delete_log(client, "files.q", file_entries=True)
    bk("import", "other", checkpoint(tmp_path / "other"))
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "delete_data_ledger", lambda *_: (_ for _ in ()).throw(FileStoreError("no")))
        bk("gc", status=1)
        assert "is left: [BK-FILES] no" in bk.err
    assert bk("gc") == "checkpoint other: 0 ledgers deleted\ncheckpoint q: 1 ledger deleted\n"
    assert bk("gc") == "checkpoint other: 0 ledgers deleted\n"
    client.store.create("files/files.bad/1", b"nonsense")
    bk("gc", status=1)
    assert "checkpoint bad: data ledger 1 is left: [BK-METADATA-FORMAT]" in bk.err and "other" in bk.out


def test_one_that_is_not_there_keeps_no_other_from_being_deleted_or_cleaned(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    for name in ("a", "c"):
        bk("import", name, checkpoint(tmp_path / name))
    bk("gc", "a", "b", "c", "a", status=1)
    assert bk.out == "checkpoint a: 0 ledgers deleted\ncheckpoint c: 0 ledgers deleted\n"
    assert bk.err.startswith("error: [BK-FILES-NO-STORE] there is no checkpoint 'b'") and bk.err.count("error: ") == 1
    bk("rm", "a", "b", "c", "a", "--yes", status=1)
    assert bk.out == "checkpoint a deleted\ncheckpoint c deleted\n"
    assert bk.err.startswith("error: [BK-FILES-NO-STORE] there is no checkpoint 'b'") and bk.err.count("error: ") == 1
    assert file_stores(client, remains=True) == []
    bk("rm", "a", "--yes", status=1)
    assert bk.out == ""


def test_passwords(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    bk("import", "q", checkpoint(tmp_path / "in"), "--password", "secret")
    bk("import", "open", checkpoint(tmp_path / "other"))
    assert [line["checkpoint"] for line in bk.json("ls")] == ["open"] and "checkpoint q is left out: [" in bk.err and "secret" not in bk.err
    assert bk("cat", "q", "metadata", "--password", "secret") == '{"id":"the-query"}'
    bk("rm", "q", status=1)
    assert "delete checkpoint q ([" in bk.err
    bk("rm", "q", "--yes", "--password", "wrong", status=1)
    assert "wrong" not in bk.err.replace("wrong password", "")
    bk("rm", "q", "--yes", "--password", "secret")
    assert file_stores(client) == ["open"]


# --- lag -----------------------------------------------------------------------------------------------------------------


def test_lag_of_a_query_whose_checkpoint_is_in_a_store(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    listed = create_log(client, "flights", LogProperties(entry_format="raw"))
    place = {"flights": {**ours(0)["flights"], "logId": listed.log_id, "seq": 0}}
    source = checkpoint(tmp_path / "in")
    (source / "offsets" / "1").write_text(offsets(1, place))
    bk("import", "q", source)
    wanted = bk.json("lag", source, group="query")
    assert wanted[0]["log"] == "flights" and wanted[0]["committedBatch"] == 1
    for where in ("bk://q", "bk://q/", "webhdfs://bookkeeper-checkpoints/q"):
        assert bk.json("lag", where, group="query") == wanted
    bk("lag", "bk://z", group="query", status=1)
    assert "[BK-FILES-NO-STORE]" in bk.err
    bk("lag", "bk://q/below", group="query", status=1)
    assert "bk://q/below has no file in a folder offsets" in bk.err
    assert queries.stored_at("webhdfs://other/q") is None and queries.stored_at("bk://q/a%20b") == ("q", "/a b")


# --- Spark's files -------------------------------------------------------------------------------------------------------


@contextmanager
def told(folder: Path, text: str) -> Iterator[Callable[[], Any]]:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / "0").write_text(text)
    yield lambda: read_offsets(LocalFolder(folder), 0)


def test_both_versions_of_the_offset_log(tmp_path: Path) -> None:
    with told(tmp_path, 'v1\n{"batchTimestampMs":7}\n{"a":{"0":1}}\n-\n3\nnot json') as read:
        assert read() == ({"batchTimestampMs": 7}, {"0": {"a": {"0": 1}}, "1": None, "2": 3, "3": "not json"})
    with told(tmp_path, 'v2\n{"batchTimestampMs":7}\n0:13\nflights:{"logOffset":3}\nnone:-\n') as read:
        assert read()[1] == {"0": 13, "flights": {"logOffset": 3}, "none": None}
    with told(tmp_path, "v1\n\n5") as read:  # Spark before 2.0 wrote no metadata
        assert read() == ({}, {"0": 5})
    for text, said in (
        ("v3\n{}", "version 'v3'"),
        ("", "cannot be read"),
        ("v1\n{\n1", "cannot be read"),
        ("v2\n{}\nx", "no name and colon"),
    ):
        with told(tmp_path, text) as read, pytest.raises(InvalidArgumentError, match=said):
            read()
    with told(tmp_path, 'v1\n{"batchTimestampMs":true,"batchWatermarkMs":"x"}') as read:
        batch = read_batch(LocalFolder(tmp_path), 0, committed=True)
        assert (batch.planned_ms, batch.watermark_ms, batch.committed_ms) == (None, None, None)
    assert query_id(LocalFolder(tmp_path)) is None
    (tmp_path / "metadata").write_text("[]")
    assert query_id(LocalFolder(tmp_path)) is None


def test_a_checkpoint_without_batches(bk: Bk, client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "q") as store:
        store.put("/metadata", b"{}")
    assert "has no batch yet\n" in bk("show", "q")
    with FileStore.open(client, "multi") as store:
        for name in ("first", "second"):
            store.put(f"/{name}/offsets/0", b"v1\n{}\n-")
    assert "has no batch yet; it holds multi/first and multi/second\n" in bk("show", "multi")
    bk("lag", "bk://multi", group="query", status=1)
    assert "has no file in a folder offsets; it holds multi/first and multi/second\n" in bk.err
    assert bk.json("show", "q")[0]["batches"] == []
    with FileStoreView.open(client, "q") as view:
        assert StoreFolder(view).names("offsets") == [] and StoreFolder(view).told("x") == "bk://q/x"


def test_offsets_of_other_sources_are_cut(bk: Bk) -> None:
    assert checkpoints.offset_told({"topic": {"0": 5}}) == '{"topic":{"0":5}}'
    assert checkpoints.offset_told("x" * 100) == "x" * 60 + " ..."
    assert checkpoints.offset_told(None) is None


@pytest.mark.parametrize(("told", "shown"), [(10**18, "9999-12-31 23:59:59"), (-(10**18), "0001-01-01 00:00:00")])
def test_a_time_that_no_calendar_has_is_shown_and_exported_as_the_nearest(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: int, shown: str
) -> None:
    """Other programs may write any time into a record."""
    with monkeypatch.context() as patched:
        patched.setattr(machine.FileMachine, "_time", lambda self, ms: ms)
        patched.setattr(store_module, "now_ms", lambda: told)
        with FileStore.open(client, "q") as store:
            store.put("/metadata", b'{"id":"x"}')
    assert shown in bk("ls", "q")
    assert bk.json("ls", "q", "/")[0]["modifiedMs"] == told
    bk("export", "q", tmp_path / "out")
    assert (tmp_path / "out" / "metadata").read_bytes() == b'{"id":"x"}'
