"""Ledgers and logs into files and back: what arrives is what was there, and what fails leaves nothing."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import signal
import stat
import struct
import zlib
from array import array
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import bk_core
from bk_core.client.transfer import entry_file, ledgers, logs, new_file
from bk_core.client.transfer.entry_file import Entries, EntryFile, EntryWriter, entries_of
from bk_core.errors import (
    CopyMismatchError,
    ExportFileError,
    ExportFormatError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
)
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.threads import SafeFuture
from tests.unit.bk_core.conftest import Bk

PAYLOADS = [b"", b"one", b"\0\xff" * 500, "\u2028 text".encode(), *(b"entry %d" % n for n in range(300))]


def run_of(payloads: list[bytes], first: int = 0) -> Entries:
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return Entries(first, b"".join(payloads), offsets)


def file_of(payloads: list[bytes]) -> bytes:
    target = io.BytesIO()
    writer = EntryWriter(target, {"what": "ledger"})
    writer.write(run_of(payloads))
    writer.finish()
    return target.getvalue()


def read(data: bytes) -> list[bytes]:
    found = []
    for run in EntryFile(io.BytesIO(data), "it").runs():
        found += [bytes(run.values[run.offsets[i] : run.offsets[i + 1]]) for i in range(run.count)]
    return found


# --- files of entries ----------------------------------------------------------------------------------------------------


def test_a_file_of_entries_gives_back_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(file_of(PAYLOADS)) == PAYLOADS
    assert read(file_of([])) == []
    monkeypatch.setattr(entry_file, "BLOCK_ENTRIES", 7)
    assert read(file_of(PAYLOADS)) == PAYLOADS


def test_the_stored_form_byte_for_byte() -> None:
    """The form that client/transfer/README.md tells, so that a file of today is read by every later version."""
    header = b'{"format":1,"what":"ledger"}'
    block = struct.pack(">IQQ", 2, 0, 3) + struct.pack(">II", 1, 2) + b"abc"
    end = struct.pack(">IQQ", 0, 2, 3)
    parts = [b"BKENTRY\x01", struct.pack(">I", len(header)), header, struct.pack(">I", zlib.crc32(header))]
    parts += [block, struct.pack(">I", zlib.crc32(block)), end, struct.pack(">I", zlib.crc32(end))]
    assert file_of([b"a", b"bc"]) == b"".join(parts)


def test_a_run_whose_offsets_begin_elsewhere_is_the_same() -> None:
    run = entries_of(5, b"xxabc", array("q", [2, 3, 5]))
    assert (bytes(run.values), list(run.offsets), list(run.sizes)) == (b"abc", [0, 1, 3], [1, 2])


def test_what_is_cut_off_or_damaged_anywhere_is_refused() -> None:
    data = file_of([b"a", b"bcd", b""])
    for end in range(len(data)):
        with pytest.raises(ExportFormatError, match="cut off|no file of entries"):
            read(data[:end])
    for place in range(len(data)):
        with pytest.raises(ExportFormatError):
            read(data[:place] + bytes([data[place] ^ 0x11]) + data[place + 1 :])
    with pytest.raises(ExportFormatError, match="after its end"):
        read(data + b"x")


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"format":1e999}', b'{"format":2}'])
def test_a_header_that_nobody_writes_is_refused(header: bytes) -> None:
    with pytest.raises(ExportFormatError, match="^.BK-EXPORT-FORMAT. it (is of another form: its header|has format)"):
        read(entry_file.MAGIC + struct.pack(">I", len(header)) + header + struct.pack(">I", zlib.crc32(header)))


def test_a_file_without_one_of_its_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_file, "BLOCK_ENTRIES", 2)
    one, two = file_of([b"a", b"b"]), file_of([b"a", b"b", b"c"])
    end = struct.calcsize(">IQQ") + 4
    with pytest.raises(ExportFormatError, match="says that it has 3 entries, and has 2"):
        read(one[:-end] + two[-end:])


# --- new files -----------------------------------------------------------------------------------------------------------


def test_a_new_file_appears_whole_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "it"
    with new_file.new_file(path) as target:
        target.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    with pytest.raises(ExportFileError, match="exists and is not written over"), new_file.new_file(path):
        raise AssertionError
    other = tmp_path / "other"
    with pytest.raises(RuntimeError), new_file.new_file(other) as target:
        raise RuntimeError
    with pytest.raises(ExportFileError, match="cannot be written: File exists"), new_file.new_file(other) as target:
        target.write(b"mine")
        other.write_bytes(b"somebody else's")
    assert other.read_bytes() == b"somebody else's"
    with pytest.raises(ExportFileError, match="no folder"), new_file.new_file(tmp_path / "none" / "it"):
        raise AssertionError
    assert sorted(one.name for one in tmp_path.iterdir()) == ["it", "other"]


@pytest.mark.parametrize(("error", "is_made"), [(errno.EIO, False), (errno.EINVAL, True)])
def test_a_file_whose_folder_cannot_be_synced_is_gone_or_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_made: bool
) -> None:
    """A file system that syncs no folders loses nothing by it; where a sync failed, the error says that nothing is left."""
    sync = os.fsync

    def fails(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with nullcontext() if is_made else pytest.raises(ExportFileError, match="Nothing of it is left"):
        with new_file.new_file(tmp_path / "it") as target:
            target.write(b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"] * is_made


def test_without_links_a_new_file_replaces_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    with new_file.new_file(tmp_path / "it") as target:
        target.write(b"whole")
    assert (tmp_path / "it").read_bytes() == b"whole"


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many(PAYLOADS)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    bk("export", ledger.ledger_id, tmp_path / "it", group="ledger", status=1)
    assert "there is no room for it" in bk.err
    assert not [one for one in tmp_path.iterdir() if "it" in one.name and one.is_file()]


# --- ledgers -------------------------------------------------------------------------------------------------------------


def entries(client: bk_core.BookKeeper, ledger_id: int, password: bytes = b"") -> list[bytes]:
    with client.open_ledger(ledger_id, password=password) as reader:
        assert reader.is_closed
        return reader.read(0, reader.last_add_confirmed)


def test_a_ledger_goes_into_a_file_and_back(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    custom = {"mine": b"kept", "log": b"events", "logId": b"f00d"}
    with client.create_ledger(custom=custom, digest_type="MAC", password=b"old", ack_quorum_size=3) as ledger:
        ledger.append_many(PAYLOADS)
    path = tmp_path / "ledger.bke"
    (told,) = bk.json("export", ledger.ledger_id, path, "--password", "old", group="ledger")
    assert (told["entries"], told["bytes"], told["file"], told["sourceClosed"]) == (len(PAYLOADS), sum(map(len, PAYLOADS)), str(path), True)
    bk("export", ledger.ledger_id, path, "--password", "old", group="ledger", status=1)
    assert "exists and is not written over" in bk.err
    (made,) = bk.json("import", path, "--password", "new", "--keep-custom", group="ledger")
    assert (made["file"], entries(client, made["ledger"], b"new")) == (str(path), PAYLOADS)
    metadata = client.ledger_metadata(made["ledger"])
    assert (metadata.digest_type, metadata.ack_quorum_size, metadata.length) == (DigestType.MAC, 3, sum(map(len, PAYLOADS)))
    assert dict(metadata.custom) == {"application": b"bk", "purpose": b"import", "source": b"file ledger.bke", "mine": b"kept"}
    assert b"old" not in path.read_bytes()
    (plain,) = bk.json("import", path, "--new-digest", "crc32", "--ack-quorum-size", "2", group="ledger")
    metadata = client.ledger_metadata(plain["ledger"])
    assert (metadata.digest_type, metadata.ack_quorum_size, set(metadata.custom)) == (
        DigestType.CRC32,
        2,
        {"application", "purpose", "source"},
    )


def test_a_ledger_is_copied_here_and_to_another_cluster(bk: Bk, client: bk_core.BookKeeper) -> None:
    with client.create_ledger(password=b"pw") as ledger:
        ledger.append_many(PAYLOADS)
    (made,) = bk.json("cp", ledger.ledger_id, "--password", "pw", group="ledger")
    assert entries(client, made["ledger"], b"pw") == PAYLOADS
    (part,) = bk.json("cp", ledger.ledger_id, "--first", 3, "--last", 9, "--password", "pw", "--new-password", "", group="ledger")
    assert entries(client, part["ledger"]) == PAYLOADS[3:10]
    (other,) = bk.json("cp", ledger.ledger_id, "--to-uri", bk.uri, "--password", "pw", group="ledger")
    assert other["ledger"] not in (made["ledger"], ledger.ledger_id)
    assert "read again and the same" in bk("cp", ledger.ledger_id, "--password", "pw", group="ledger")


def test_of_an_open_ledger_the_confirmed_entries_are_exported(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger = client.create_ledger()
    ledger.append_many([b"a", b"b"])
    ledger.append(b"c")
    bk("export", ledger.ledger_id, tmp_path / "it", group="ledger")
    assert "is not CLOSED" in bk.err
    assert read((tmp_path / "it").read_bytes())[:2] == [b"a", b"b"]
    ledger.append(b"still alive")
    ledger.close()


def test_an_import_that_fails_leaves_no_ledger(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([bytes([n]) * 1000 for n in range(200)])
    path = tmp_path / "it"
    bk("export", ledger.ledger_id, path, group="ledger")
    before = list(client.list_ledgers())
    data = bytearray(path.read_bytes())
    for name, content in (("cut", data[:-30]), ("damaged", data[:5000] + b"?" + data[5001:]), ("other", b"no such file")):
        (tmp_path / name).write_bytes(content)
        bk("import", tmp_path / name, group="ledger", status=1)
        assert f"error: [BK-EXPORT-FORMAT] {tmp_path / name} " in bk.err
    (tmp_path / "bare").write_bytes(file_of([b"a"]))
    bk("import", tmp_path / "bare", group="ledger", status=1)
    assert "lacks sizes, ids or the digest type of its ledger in its header" in bk.err
    bk("import", tmp_path / "missing", group="ledger", status=1)
    assert "cannot be read: No such file" in bk.err
    monkeypatch.setattr(ledgers.Fingerprint, "__eq__", lambda self, other: False)
    with pytest.raises(CopyMismatchError):
        ledgers.import_ledger(client, path, ledgers.NewLedger())
    assert list(client.list_ledgers()) == before


def test_an_import_that_fails_tells_its_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bk: Bk, client: bk_core.BookKeeper
) -> None:
    """A writer that ends by an error logs it, too."""
    with client.create_ledger() as ledger:
        ledger.append(b"x")
    bk("export", ledger.ledger_id, tmp_path / "it", group="ledger")
    log, failed, lines = logging.getLogger("bk_core.client"), NotEnoughBookiesError("none can replace it"), list[str]()

    def appended(*_: Any) -> Any:
        log.warning("%s", failed)
        log.warning("%s", NotEnoughBookiesError("of another ledger"))
        log.warning("in passing")
        raise failed

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    kept = Kept()
    log.addHandler(kept)
    monkeypatch.setattr(ledgers, "_appended", appended)
    bk("import", tmp_path / "it", group="ledger", status=1)
    log.removeHandler(kept)
    assert bk.err == f"error: {failed}\n"
    assert lines == ["in passing", "[BK-NOT-ENOUGH-BOOKIES] of another ledger"]


@pytest.mark.parametrize("answered", [0, 40])
def test_an_acknowledgement_that_does_not_come_is_waited_for_no_longer_than_any(client: bk_core.BookKeeper, answered: int) -> None:
    """With the metadata store away a ledger whose bookie failed gives none."""

    class Silent:
        ledger_id = 7

        def append_run_future(self, *_: object) -> SafeFuture[int]:
            return SafeFuture()

    impatient = SimpleNamespace(config=replace(client.config, operation_timeout_s=0.05))
    runs = [entries_of(n, b"x" * (1 << 20), array("q", [0, 1 << 20])) for n in range(answered or 1)]
    with pytest.raises(OperationTimeoutError, match="appending to the new ledger 7 did not finish within 0.05 s"):
        list(ledgers._appended(impatient, Silent(), runs))  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_kill_leaves_neither_half_a_file_nor_half_a_ledger(
    number: signal.Signals, status: int, tmp_path: Path, bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"x"] * 10)
    bk("export", ledger.ledger_id, tmp_path / "whole", group="ledger")
    before = list(client.list_ledgers())

    def killed(*_: Any) -> None:
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(EntryWriter, "write", killed)
        bk("export", ledger.ledger_id, tmp_path / "half", group="ledger", status=status)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bookies", "whole"]
    monkeypatch.setattr(ledgers, "verify", killed)
    bk("import", tmp_path / "whole", group="ledger", status=status)
    bk("cp", ledger.ledger_id, group="ledger", status=status)
    assert list(client.list_ledgers()) == before


# --- logs ----------------------------------------------------------------------------------------------------------------


def payloads_of(client: bk_core.BookKeeper, name: str) -> list[bytes]:
    with client.log(name).reader() as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def test_a_raw_log_goes_into_a_file_and_back_as_one_commit(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    log = client.create_log("events")
    for part in (PAYLOADS[:100], PAYLOADS[100:]):
        with log.writer() as writer:
            writer.append_many(part)
    path = tmp_path / "events.bke"
    (told,) = bk.json("export", "events", path, group="log")
    assert (told["rows"], told["format"]) == (len(PAYLOADS), "entries")
    bk("import", "copy", path, group="log", status=1)
    assert "there is no log 'copy'; create=True (--create) makes it" in bk.err
    with pytest.raises(NoSuchLogError):
        client.log("copy")
    (made,) = bk.json("import", "copy", path, "--create", group="log")
    assert (made["rows"], made["first"], made["end"]) == (len(PAYLOADS), {"seq": 0, "entry": 0}, {"seq": 1, "entry": 0})
    assert payloads_of(client, "copy") == PAYLOADS
    bk("import", "copy", path, group="log")
    assert payloads_of(client, "copy") == PAYLOADS * 2
    times = {segment.committed_at_ms for segment in client.log("copy").segments()}
    assert len(times) <= 2


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"[1]", "is of another form: its header is no object of JSON"),
        (b"\xff", "is of another form: its header is no object of JSON"),
        (b'{"format":2,"what":"ledger"}', "has format 2, and this program reads format 1"),
        (b'{"format":1,"what":"ledger"}', "lacks sizes, ids or the digest type of its ledger"),
        (b'{"format":1,"what":"ledger","ensembleSize":1,"writeQuorumSize":1,"ackQuorumSize":1,"firstEntryId":0,"lastEntryId":0,'
         b'"digestType":"CRC32","custom":[1]}', "has custom metadata in its header that is none"),
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_refused_in_words(header: bytes, told: str, tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"BKENTRY\x01" + struct.pack(">I", len(header)) + header + struct.pack(">I", zlib.crc32(header)))
    bk("import", path, group="ledger", status=1)
    assert f"error: [BK-EXPORT-FORMAT] {path} {told}" in bk.err and not list(client.list_ledgers())


def test_a_copy_from_beyond_the_end_makes_no_ledger(bk: Bk, client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"x")
    bk("cp", ledger.ledger_id, "--first", "5", group="ledger", status=1)
    assert f"first entry 5 lies beyond the end of ledger {ledger.ledger_id}" in bk.err
    assert list(client.list_ledgers()) == [ledger.ledger_id]


def test_entries_take_no_compression(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    client.create_log("raw")
    bk("export", "raw", tmp_path / "it", "--compression", "zstd", group="log", status=1)
    assert "entries are not compressed: leave compression 'zstd' out" in bk.err and not (tmp_path / "it").exists()


def test_a_name_of_another_format_and_a_pipe_are_refused(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    """They got the form of entries, under a name of something else."""
    with client.create_ledger() as ledger, client.create_log("events").writer() as writer:
        ledger.append(b"x")
        writer.append(b"x")
    for group, name in (("log", "events"), ("ledger", str(ledger.ledger_id))):
        bk("export", name, tmp_path / "it.CSV", group=group, status=1)
        assert "it.CSV ends with .csv, and there is no such format: " in bk.err
        bk("export", name, "-", group=group, status=2)
        assert "standard input and output cannot be taken: name a file" in bk.err
        told = bk("export", name, tmp_path / group, group=group)
        assert " B/s: " in told or "kB/s: " in told
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["ledger", "log"]
    bk("export", "events", tmp_path / "it.csv", "--format", "entries", group="log")
    bk("import", "events", tmp_path / "it.csv", group="log", status=1)
    bk("import", "events", "-", group="log", status=2)
    bk("import", "events", tmp_path / "it.csv", "--format", "entries", group="log")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_rows_go_into_a_table_and_back(ending: str, tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(5000), pa.int64()),
            "x": pa.array([None if n % 7 == 0 else float("nan") if n % 5 == 0 else n / 3 for n in range(5000)]),
            "tags": pa.array([[str(n)] * (n % 4) for n in range(5000)], pa.list_(pa.string())),
        }
    )
    client.create_log("flights", entry_format="arrow").write(rows, entry_size=4000)
    path = tmp_path / f"flights.{ending}"
    (told,) = bk.json("export", "flights", path, group="log")
    assert (told["rows"], told["format"], told["bytes"]) == (5000, ending, path.stat().st_size)
    table = parquet.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
    assert table.num_rows == 5000
    assert table.column("id").to_pylist() == list(range(5000))
    (made,) = bk.json("import", "copy", path, "--create", group="log")
    assert made["rows"] == 5000
    found = client.log("copy").to_arrow()
    assert repr(found.to_pydict()) == repr(client.log("flights").to_arrow().to_pydict())
    bk("export", "flights", path, group="log", status=1)
    assert "exists and is not written over" in bk.err


def test_a_raw_log_may_become_a_table_and_comes_back_from_it(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    with client.create_log("events").writer() as writer:
        writer.append_many(PAYLOADS)
    bk("export", "events", tmp_path / "events.parquet", group="log")
    bk("import", "copy", tmp_path / "events.parquet", "--create", group="log")
    assert payloads_of(client, "copy") == PAYLOADS


def test_what_does_not_suit_the_log_is_refused_before_anything_is_done(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    client.create_log("flights", entry_format="arrow").write(pa.table({"id": [1]}))
    bk("export", "flights", tmp_path / "it.bke", group="log", status=1)
    assert "has Arrow entries: export it to a file that ends with .parquet or .arrow" in bk.err
    with client.create_log("events").writer() as writer:
        writer.append(b"x")
    bk("export", "events", tmp_path / "events.bke", group="log")
    bk("import", "flights", tmp_path / "events.bke", group="log", status=1)
    assert "is a log of Arrow entries" in bk.err
    bk("import", tmp_path / "events.bke", group="ledger", status=1)
    assert "holds the entries of a log" in bk.err
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    for ending in ("parquet", "arrow"):
        bad = tmp_path / f"bad.{ending}"
        bad.write_bytes(b"PAR1 nothing PAR1")
        bk("import", "flights", bad, group="log", status=1)
        assert "BK-EXPORT-FORMAT" in bk.err
    parquet.write_table(pa.table({"other": ["a"]}), tmp_path / "other.parquet")
    bk("import", "flights", tmp_path / "other.parquet", group="log", status=1)
    assert "BK-LOG-SCHEMA" in bk.err
    assert client.log("flights").info.rows == 1
    assert client.log("flights").to_arrow().to_pydict() == {"id": [1]}


def test_an_import_of_rows_that_is_cut_off_is_not_seen(tmp_path: Path, bk: Bk, client: bk_core.BookKeeper) -> None:
    with client.create_log("events").writer() as writer:
        writer.append_many([os.urandom(1000) for _ in range(100)])
    path = tmp_path / "events.bke"
    bk("export", "events", path, group="log")
    data = path.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-5])
    before = list(client.list_ledgers())
    bk("import", "events", tmp_path / "cut", group="log", status=1)
    assert "is cut off" in bk.err
    assert client.log("events").info.rows == 100
    assert list(client.list_ledgers()) == before


def test_a_difference_behind_a_commit_is_told(tmp_path: Path, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.create_log("events").writer() as writer:
        writer.append(b"x")
    logs.export_log(client, "events", tmp_path / "it")
    monkeypatch.setattr(logs, "_entries_at", lambda *_: ledgers.Fingerprint())
    with pytest.raises(CopyMismatchError, match="segments 1 to 1"):
        logs.import_log(client, "events", tmp_path / "it")


def test_rows_are_compared_value_by_value(tmp_path: Path, client: bk_core.BookKeeper) -> None:
    from bk_spark.arrow.files import same_rows

    written = client.create_log("flights", entry_format="arrow").write(pa.table({"id": [1, 2, 3]}))
    for ids, same in (([1, 2, 3], True), ([1, 2, 4], False), ([1, 2], False), ([1, 2, 3, 4], False)):
        path = tmp_path / f"{hashlib.sha1(repr(ids).encode()).hexdigest()}.parquet"
        parquet.write_table(pa.table({"id": ids}), path)
        how: dict[str, Any] = {"password": b"", "start": written.first, "end": written.end, "on_counts": None}
        assert same_rows(client, "flights", path, "parquet", **how) is same


# --- what was asked for --------------------------------------------------------------------------------------------------


def test_a_range_behind_the_end_is_told(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    """The command copies all entries that exist, as ``bk ledger read`` prints them, and its status says that there are fewer."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"x"] * 20)
    told = f"ledger {ledger.ledger_id} ends at entry 19: entry 50 lies beyond"
    (done,) = bk.json("export", str(ledger.ledger_id), str(tmp_path / "short"), "--last", "50", group="ledger", status=1)
    assert done["entries"] == 20 and told in bk.err
    bk("cp", str(ledger.ledger_id), "--first", "7", "--last", "50", group="ledger", status=1)
    assert told in bk.err and "13 entries" in bk.out
    bk("export", str(ledger.ledger_id), str(tmp_path / "whole"), "--first", "2", "--last", "19", group="ledger")
    with client.create_ledger() as empty:
        pass
    bk("export", str(empty.ledger_id), str(tmp_path / "none"), "--last", "1", group="ledger", status=1)
    assert f"ledger {empty.ledger_id} has no entry from 0 on: entry 1 lies beyond" in bk.err


@pytest.mark.parametrize("given", ["-1", "9223372036854775808", "1_0", "٣", "+1", " 1", "1.0", ""])
@pytest.mark.parametrize("command", ["show", "read", "xray", "check", "rm"])
def test_what_no_ledger_can_have_as_its_id_is_a_wrong_command_line(bk: Bk, command: str, given: str) -> None:
    bk(command, *(["--yes"] if command == "rm" else []), "--", given, group="ledger", status=2)
    assert "is no id of a ledger, which is a whole number from 0 to 9223372036854775807" in " ".join(bk.err.split())
