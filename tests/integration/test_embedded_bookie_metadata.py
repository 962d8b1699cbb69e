"""The embedded bookie and its metadata store: cookies, garbage collection, a full disk, and what it does after a loss of data."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bk_core.bookie import standby
from bk_core.bookie.collector import CollectorOptions, collectable
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.guard import TOLD, allow_collection
from bk_core.bookie.identity import Standing, begin_anew, examine, loss_file, sign, version_file
from bk_core.bookie.journal import NAMES
from bk_core.bookie.refill import mark_losses
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.cli import cli
from bk_core.errors import BookieIOError, InvalidArgumentError, MetadataContradictionError, MetadataUnavailableError, NoNodeError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import Registration, Versioned
from bk_core.protocol.bookie import LedgerRecord, Persist
from bk_core.protocol.bookie.room import DiskLook
from bk_core.protocol.ledger.metadata_codec import encode
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import KEY, NEVER, REFILL, add, body, change, eventually, fence, fill, metadata, peer_of, read


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    yield store
    store.close()


# --- cookies (metadata.md 4.5) --------------------------------------------------------------------------------------


def used_storage(directory: Path) -> None:
    storage = LmdbBookieStorage(directory / "current")
    storage.apply(Persist(LedgerRecord(1, KEY)))
    storage.sync()
    storage.close()


def test_cookies_guard_the_directory(store: MemoryStore, tmp_path: Path) -> None:
    """Another bookie's directory is never served from, whatever the operator says (B-10)."""
    used_storage(tmp_path)
    sign(store, "a:1", tmp_path)
    sign(store, "a:1", tmp_path)
    assert store.read_cookie("a:1").data == version_file(tmp_path).read_bytes()
    assert examine(store, "a:1", tmp_path).standing is Standing.SAME
    with pytest.raises(InvalidArgumentError, match="another bookie id"):
        examine(store, "a:2", tmp_path)
    moved = tmp_path / "copy"
    shutil.copytree(tmp_path / "current", moved / "current")
    with pytest.raises(InvalidArgumentError, match="another journal directories"):
        examine(store, "a:1", moved)


def _fresh(directory: Path, store: MemoryStore) -> None:
    pass


def _killed_before_the_cookie(directory: Path, store: MemoryStore) -> None:
    LmdbBookieStorage(directory / "current").close()


def _killed_between_the_cookies(directory: Path, store: MemoryStore) -> None:
    _killed_before_the_cookie(directory, store)
    sign(store, "a:1", directory)
    store.delete_cookie("a:1", store.read_cookie("a:1").version)


def _intact(directory: Path, store: MemoryStore) -> None:
    used_storage(directory)
    sign(store, "a:1", directory)


def _wiped(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    shutil.rmtree(directory / "current")


def _without_local_cookie(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    version_file(directory).unlink()


def _without_stored_cookie(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    store.delete_cookie("a:1", store.read_cookie("a:1").version)


def _without_storage(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    (directory / "current" / "data.mdb").unlink()


def _emptied_storage(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    (directory / "current" / "data.mdb").write_bytes(b"")


def _garbled_storage(directory: Path, store: MemoryStore) -> None:
    _intact(directory, store)
    (directory / "current" / "data.mdb").write_bytes(b"garbage" * 10_000)


def _killed_while_marking(directory: Path, store: MemoryStore) -> None:
    _without_storage(directory, store)
    begin_anew(directory)
    _killed_before_the_cookie(directory, store)


def _without_any_cookie(directory: Path, store: MemoryStore) -> None:
    """Prepare a directory that ``_killed_while_marking`` left, and whose cookie somebody has deleted besides."""
    _killed_while_marking(directory, store)
    store.delete_cookie("a:1", store.read_cookie("a:1").version)


def _killed_before_version_went(directory: Path, store: MemoryStore) -> None:
    _without_storage(directory, store)
    store.delete_cookie("a:1", store.read_cookie("a:1").version)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(Path, "unlink", _interrupted)
        begin_anew(directory)


def _killed_when_version_went(directory: Path, store: MemoryStore) -> None:
    _without_storage(directory, store)
    store.delete_cookie("a:1", store.read_cookie("a:1").version)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("bk_core.bookie.identity.would_overwrite", _interrupted)
        begin_anew(directory)


def _interrupted(*_: object, **__: object) -> None:
    raise InterruptedError


def _refilling(directory: Path, store: MemoryStore) -> None:
    _killed_while_marking(directory, store)
    sign(store, "a:1", directory)


@pytest.mark.parametrize(
    ("prepare", "standing"),
    [
        (_fresh, Standing.NEW),
        (_killed_before_the_cookie, Standing.NEW),
        (_killed_between_the_cookies, Standing.NEW),
        (_intact, Standing.SAME),
        (_wiped, Standing.LOST),
        (_without_local_cookie, Standing.LOST),
        (_without_stored_cookie, Standing.LOST),
        (_without_storage, Standing.LOST),
        (_emptied_storage, Standing.LOST),
        (_garbled_storage, Standing.LOST),
        (_killed_while_marking, Standing.LOST),
        (_without_any_cookie, Standing.LOST),
        (_killed_before_version_went, Standing.LOST),
        (_killed_when_version_went, Standing.LOST),
        (_refilling, Standing.SAME),
    ],
)
def test_b10_losses_are_told_from_first_starts(
    store: MemoryStore, tmp_path: Path, prepare: Callable[[Path, MemoryStore], None], standing: Standing
) -> None:
    """B-10: every way to miss data that was there is found out before anything is served."""
    prepare(tmp_path, store)
    finding = examine(store, "a:1", tmp_path)
    assert finding.standing is standing
    assert bool(finding.reason) is (standing is Standing.LOST)


def test_damaged_storage_is_kept_for_inspection(store: MemoryStore, tmp_path: Path) -> None:
    for number in (1, 2):
        version_file(tmp_path).parent.mkdir(exist_ok=True)
        (tmp_path / "current" / "data.mdb").write_bytes(b"garbage" * 10_000)
        with pytest.raises(BookieIOError, match="cannot be opened"):
            LmdbBookieStorage(tmp_path / "current")
        begin_anew(tmp_path)
        assert (tmp_path / "current" / f"data.mdb.lost-{number}").exists()
        LmdbBookieStorage(tmp_path / "current").close()


@pytest.mark.parametrize("emptied", [False, True])
def test_b10_a_journal_without_its_database_is_kept(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, emptied: bool
) -> None:
    """B-10: it may have the newest acknowledged entries, and somebody may find the database yet."""
    current = tmp_path / "current"
    for number in (1, 2):
        with EmbeddedBookie(tmp_path, store=store, options=REFILL) as bookie:
            if number == 1:
                fill(bookie, 1, range(5))
        journals = {name: (current / name).read_bytes() for name in NAMES}
        assert b"payload" in b"".join(journals.values()) or number == 2
        (current / "data.mdb").unlink()
        if emptied:
            (current / "data.mdb").touch()
        with pytest.raises(InvalidArgumentError, match="has lost its data"):
            EmbeddedBookie(tmp_path, store=store).start()
        assert {name: (current / name).read_bytes() for name in NAMES} == journals
        with EmbeddedBookie(tmp_path, store=store, options=REFILL):
            assert {name: (current / f"{name}.lost-{number}").read_bytes() for name in NAMES} == journals
        assert f"kept as {'data.mdb.lost-1, ' if emptied else ''}journal-0.lost-1, journal-1.lost-1" in caplog.text


# --- losses (B-10, RC-25, RC-26, RC-27) -------------------------------------------------------------------------------


def lose(directory: Path) -> None:
    shutil.rmtree(directory / "current")


def test_b10_a_bookie_without_its_data_does_not_start(store: MemoryStore, tmp_path: Path) -> None:
    """B-10."""
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        fill(bookie, 1, [0])
    lose(tmp_path)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="has lost its data.*--accept-data-loss"):
            EmbeddedBookie(tmp_path, store=store).start()
    assert store.bookies().writable == ()


def test_a_bookie_whose_cookie_was_deleted_says_how_it_gets_it_back(store: MemoryStore, tmp_path: Path) -> None:
    """It has lost nothing then, and starts with all that it has."""
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        fill(bookie, 1, [0])
        mine = bookie.bookie_id
    store.delete_cookie(mine, store.read_cookie(mine).version)
    with pytest.raises(InvalidArgumentError, match="no cookie of it") as refused:
        EmbeddedBookie(tmp_path, store=store).start()
    command = f"bk bookie cookie put {mine} "
    assert command in str(refused.value)
    file = Path(str(refused.value).partition(command)[2].partition("`")[0])
    store.write_cookie(mine, file.read_bytes(), None)
    with EmbeddedBookie(tmp_path, store=store) as bookie, peer_of(bookie) as peer:
        assert peer.status(read(1, 0)) is Status.OK


@pytest.mark.parametrize("damaged", [False, True])
def test_b10_a_loss_that_could_not_be_marked_is_one_at_the_next_start(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """B-10: also where the metadata store has no cookie of the bookie any more."""
    with EmbeddedBookie(tmp_path, store=store) as bookie:
        mine = bookie.bookie_id
        store.create_ledger(1, encode(metadata((0, (mine, "127.0.0.1:1")))))
        fill(bookie, 1, [0])
    store.delete_cookie(mine, store.read_cookie(mine).version)
    data = tmp_path / "current" / "data.mdb"
    if damaged:
        data.write_bytes(b"garbage" * 10_000)
    else:
        data.unlink()

    def fail(*_: object) -> int:
        raise MetadataUnavailableError("a server is away")

    with monkeypatch.context() as patch:
        patch.setattr("bk_core.bookie.embedded.mark_losses", fail)
        with pytest.raises(MetadataUnavailableError):
            EmbeddedBookie(tmp_path, store=store, options=REFILL).start()
    with pytest.raises(InvalidArgumentError, match="has lost its data.*LOST"):
        EmbeddedBookie(tmp_path, store=store).start()
    with EmbeddedBookie(tmp_path, store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
        assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE
    with EmbeddedBookie(tmp_path, store=store) as bookie, peer_of(bookie) as peer:  # and nothing needs to be said any more
        assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE


def test_b10_limbo_until_closed_and_fetched(store: MemoryStore, tmp_path: Path) -> None:
    """B-10, RC-25, RC-26, RC-27: fenced and unknowing before it serves; whole again once somebody has closed the ledger."""
    entries = range(300)
    with EmbeddedBookie(tmp_path / "b", store=store, options=REFILL) as other:
        with EmbeddedBookie(tmp_path / "a", store=store) as bookie:
            mine, theirs = bookie.bookie_id, other.bookie_id
            opened = metadata((0, (mine, theirs)))
            for ledger_id in (1, 2, 3):
                store.create_ledger(ledger_id, encode(opened))
            for ledger_id in (1, 2):
                fill(bookie, ledger_id, entries)
                fill(other, ledger_id, entries)
            change(store, 2, opened.closed(299, 2100))
        lose(tmp_path / "a")
        with EmbeddedBookie(tmp_path / "a", store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
            assert bookie.bookie_id == mine
            for ledger_id in (1, 3):
                stranger = replace(fence(ledger_id), master_key=b"another key")
                assert peer.status(stranger) is Status.UNAUTHORIZED  # B-13: the metadata tells the key
                assert peer.status(add(ledger_id, 300)) is Status.FENCED
                assert peer.status(fence(ledger_id)) is Status.UNKNOWN_LEDGER_STATE
            unknown = (read(1, 0), read(1, 300), read(1, -1), m.ReadLacRequest(1, 1), m.EntryListRequest(1, 1))
            assert {peer.status(request) for request in unknown} == {Status.UNKNOWN_LEDGER_STATE}
            assert peer.status(add(2, 300)) is Status.FENCED  # closed, and fenced all the same
            assert eventually(lambda: peer.status(read(2, 299)) is Status.OK)
            assert peer.ask(read(2, 7)).body == body(2, 7)  # type: ignore[union-attr]
            assert loss_file(tmp_path / "a").exists()
        with EmbeddedBookie(tmp_path / "a", store=store, options=replace(REFILL, accept_data_loss=False)) as bookie:
            with peer_of(bookie) as peer:
                assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE  # limbo outlasts a restart
                assert peer.status(add(1, 300, recovery=True)) is Status.OK
                change(store, 1, opened.closed(300, 2107))
                assert eventually(lambda: peer.status(read(1, 301)) is Status.NO_ENTRY)
                assert [peer.ask(read(1, i)).body for i in entries] == [body(1, i) for i in entries]  # type: ignore[union-attr]
                assert peer.status(add(1, 301)) is Status.FENCED
                change(store, 3, opened.closed(-1, 0))
                assert eventually(lambda: peer.status(read(3, 0)) is Status.NO_ENTRY)
                assert eventually(lambda: not loss_file(tmp_path / "a").exists())


def test_rc27_what_is_found_nowhere_keeps_the_ledger_in_limbo(store: MemoryStore, tmp_path: Path) -> None:
    """RC-27, and no damaged copy is taken: replicas are asked in turn, each answer is checked."""
    with EmbeddedBookie(tmp_path / "b", store=store) as second, EmbeddedBookie(tmp_path / "c", store=store) as third:
        with EmbeddedBookie(tmp_path / "a", store=store) as bookie:
            ensemble = (bookie.bookie_id, second.bookie_id, third.bookie_id)
        lose(tmp_path / "a")
        store.create_ledger(1, encode(metadata((0, ensemble))))
        damaged = replace(add(1, 0), body=body(1, 0)[:-1] + b"?")
        with peer_of(second) as peer:
            assert peer.status(damaged) is Status.OK
        fill(third, 1, [0])
        with EmbeddedBookie(tmp_path / "a", store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
            change(store, 1, metadata((0, ensemble)).closed(1, 14))
            assert eventually(lambda: peer.status(read(1, 0)) is Status.OK)
            assert peer.ask(read(1, 0)).body == body(1, 0)  # type: ignore[union-attr]
            assert peer.status(read(1, 1)) is Status.UNKNOWN_LEDGER_STATE
            fill(second, 1, [1])
            assert eventually(lambda: peer.status(read(1, 2)) is Status.NO_ENTRY)
            assert peer.ask(read(1, 1)).body == body(1, 1)  # type: ignore[union-attr]


def test_rc27_stripes_and_older_fragments(store: MemoryStore, tmp_path: Path) -> None:
    """RC-27: only ids of its own write sets are fetched; of an open ledger those below the last fragment, without any mark."""
    with EmbeddedBookie(tmp_path / "b", store=store) as other:
        with EmbeddedBookie(tmp_path / "a", store=store) as bookie:
            mine, theirs = bookie.bookie_id, other.bookie_id
        lose(tmp_path / "a")
        striped = metadata((0, (mine, theirs, "127.0.0.1:1")), (6, ("127.0.0.1:1", "127.0.0.1:2", theirs)), quorum=2)
        store.create_ledger(1, encode(striped))
        store.create_ledger(2, b"this is no metadata")
        fill(other, 1, range(7))
        with EmbeddedBookie(tmp_path / "a", store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
            assert eventually(lambda: peer.status(read(1, 3)) is Status.OK)
            # of the fragment at 0 it shares 0 and 3 with the other bookie, 2 and 5 with one that does not answer, and has no 1 and 4
            assert [i for i in range(7) if peer.status(read(1, i)) is Status.OK] == [0, 3]
            assert peer.status(read(2, 0)) is Status.UNKNOWN_LEDGER_STATE  # the worst is assumed
            assert peer.status(add(1, 9)) is Status.OK  # its writer may use this bookie again
            store.delete_ledger(2)
            assert eventually(lambda: peer.status(read(2, 0)) is Status.NO_ENTRY)


# --- garbage collection (B-12) ----------------------------------------------------------------------------------------


class ForgetfulStore(MemoryStore):
    """A listing misses the ledgers in ``hidden``."""

    hidden: frozenset[int] = frozenset()

    def list_ledgers(self) -> Iterator[int]:
        return iter([ledger_id for ledger_id in super().list_ledgers() if ledger_id not in self.hidden])


def test_b12_ledgers_without_metadata_are_collected(tmp_path: Path) -> None:
    """B-12, first case; B-6: the tombstone refuses an old writer until it expires, across a restart."""
    store = ForgetfulStore(uuid.uuid4().hex)
    store.hidden = frozenset({2})
    for ledger_id in (1, 2, 3):
        store.create_ledger(ledger_id, b"")
    assert collectable([1, 2, 4], store) == [4]
    often = BookieOptions(collector=CollectorOptions(interval_s=0.05))
    with EmbeddedBookie(tmp_path, store=store, options=often) as bookie:
        assert store.bookies().writable == (bookie.bookie_id,)
        for ledger_id in (1, 2, 3):
            fill(bookie, ledger_id, [0])
        store.delete_ledger(3)
        with peer_of(bookie) as peer:
            assert eventually(lambda: peer.status(read(3, 0)) is Status.NO_LEDGER)
            assert {peer.status(read(ledger_id, 0)) for ledger_id in (1, 2)} == {Status.OK}
            assert peer.status(add(3, 1)) is Status.FENCED
    keep_no_longer = BookieOptions(collector=CollectorOptions(interval_s=0.05, tombstone_keep_s=0.0))
    with EmbeddedBookie(tmp_path, store=store, options=NEVER_COLLECT) as bookie, peer_of(bookie) as peer:
        assert peer.status(add(3, 1)) is Status.FENCED
    with EmbeddedBookie(tmp_path, store=store, options=keep_no_longer) as bookie, peer_of(bookie) as peer:
        assert eventually(lambda: peer.status(fence(3)) is Status.NO_ENTRY)  # NO_LEDGER is a tombstone's answer
    store.close()


NEVER_COLLECT = BookieOptions(collector=NEVER)


def test_b12_closed_ledgers_that_moved_are_collected_under_the_replication_lock(store: MemoryStore, tmp_path: Path) -> None:
    """B-12, second case: never one that is open, never one that is being re-replicated, never one that names the bookie."""
    elsewhere = metadata((0, ("x:1", "y:1")))
    often = BookieOptions(collector=CollectorOptions(interval_s=0.02, moved_interval_s=0.0))
    locks = store.underreplication()
    with EmbeddedBookie(tmp_path, store=store, options=NEVER_COLLECT) as bookie:
        here = metadata((0, (bookie.bookie_id, "y:1")))
        for ledger_id, content in {1: elsewhere.closed(0, 7), 2: elsewhere, 3: here.closed(0, 7), 4: elsewhere.closed(0, 7)}.items():
            store.create_ledger(ledger_id, encode(content))
            fill(bookie, ledger_id, [0])
        store.create_ledger(5, b"this is no metadata")
        fill(bookie, 5, [0])
    lock = locks.lock(4, "a replicator")
    assert lock is not None
    with EmbeddedBookie(tmp_path, store=store, options=often) as bookie, peer_of(bookie) as peer:
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_ENTRY)
        assert eventually(lambda: locks.lock_holder(1) is None)
        for _ in range(20):  # some rounds more, none of which takes it again
            assert locks.lock_holder(1) is None
            time.sleep(0.01)
        assert {peer.status(read(ledger_id, 0)) for ledger_id in (2, 3, 4, 5)} == {Status.OK}
        assert peer.status(add(1, 0)) is Status.FENCED
        lock.release()
        assert eventually(lambda: peer.status(read(4, 0)) is Status.NO_ENTRY)
        assert peer.status(add(4, 0, recovery=True)) is Status.OK  # re-replication may choose this bookie again (R19)


# --- a full disk (B-11) -----------------------------------------------------------------------------------------------


def test_b11_a_nearly_full_disk_makes_it_read_only(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-11, B-3: registered as read-only from the start, fences and recovery go on until the reserve is half gone, and back again."""
    free = 10_000
    monkeypatch.setattr(LmdbBookieStorage, "look", lambda self: DiskLook(free))
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    with EmbeddedBookie(tmp_path, store=store, options=BookieOptions(disk_reserve_bytes=16_000)) as bookie, peer_of(bookie) as peer:
        view = store.bookies()
        assert (view.writable, view.readonly) == ((), (bookie.bookie_id,))
        assert peer.status(add(1, 0)) is Status.READ_ONLY
        assert peer.status(add(1, 0, recovery=True, high_priority=True)) is Status.OK
        free = 5_000
        assert eventually(lambda: peer.status(add(1, 1, recovery=True, high_priority=True)) is Status.READ_ONLY)
        assert peer.status(fence(2)) is Status.NO_ENTRY
        free = 20_000
        assert eventually(lambda: store.bookies().writable == (bookie.bookie_id,))
        assert peer.status(add(2, 0)) is Status.FENCED
        assert peer.status(add(3, 0)) is Status.OK


class SlowRegistration(MemoryStore):
    """A store whose registration of a bookie calls ``meanwhile`` before it ends, as that of ZooKeeper waits for the node of a killed
    process."""

    meanwhile: Callable[[], None] | None = None

    def register_bookie(self, bookie_id: str, host: str, port: int, readonly: bool = False) -> Registration:
        registration = super().register_bookie(bookie_id, host, port, readonly)
        if self.meanwhile is not None:
            self.meanwhile()
        return registration


@pytest.mark.parametrize("read_only", [False, True])
def test_b11_what_turns_while_the_bookie_registers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool) -> None:
    """B-11: it is registered as it is, also if it became read-only, or writable, before the registration was done."""
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)
    store = SlowRegistration(uuid.uuid4().hex)
    store.initialize_cluster()
    with EmbeddedBookie(tmp_path, store=store):
        pass
    standby.tell(tmp_path, read_only)
    bookie = EmbeddedBookie(tmp_path, store=store)

    def turn() -> None:
        standby.tell(tmp_path, not read_only)
        assert bookie._server is not None
        machine = bookie._server.machine
        assert eventually(lambda: machine.read_only is not read_only)

    store.meanwhile = turn
    with bookie:
        assert eventually(lambda: bool(store.bookies().readonly) is not read_only)
    store.close()


def test_force_after_deferred_sync_adds(tmp_path: Path) -> None:
    """B-1 with deferred sync: what was answered is durable already, and a force confirms no more than that."""
    with EmbeddedBookie(tmp_path) as bookie, peer_of(bookie) as peer:
        assert peer.status(replace(add(1, 0), deferred_sync=True)) is Status.OK
        assert peer.ask(m.ForceLedgerRequest(7, 1)) == m.ForceLedgerResponse(7, Status.OK, 1)
    storage = LmdbBookieStorage(tmp_path / "current")
    assert storage.entry(1, 0) == body(1, 0)
    storage.close()


# --- a metadata store that is not believed (BKE-1, BKE-2) -----------------------------------------------------------------


def _deleted_at_once(store: MemoryStore, bookie: EmbeddedBookie, count: int) -> None:
    for ledger_id in range(1, count + 1):
        store.create_ledger(ledger_id, b"")
        fill(bookie, ledger_id, [0])


def test_bke_2_many_ledgers_go_only_when_somebody_agrees(store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BKE-2: the log says what to do, and the agreement holds for one round."""
    often = BookieOptions(collector=CollectorOptions(interval_s=0.05, few=0, few_share=0.0))

    def refused() -> int:
        return sum("gone from the metadata store, more than" in record.getMessage() for record in tuple(caplog.records))

    with EmbeddedBookie(tmp_path / "a", store=store, options=often) as bookie, peer_of(bookie) as peer:
        _deleted_at_once(store, bookie, 5)
        for ledger_id in (1, 2, 3):
            store.delete_ledger(ledger_id)
        assert eventually(lambda: f"bk bookie collect {tmp_path / 'a'} --up-to 3`" in caplog.text)
        assert [peer.status(read(ledger_id, 0)) for ledger_id in (1, 2, 3, 4, 5)] == [Status.OK] * 5
        cli_result = CliRunner().invoke(cli, ["bookie", "collect", str(tmp_path / "a"), "--up-to", "2"])
        assert cli_result.exit_code == 0, cli_result.output
        before = refused()
        assert eventually(lambda: refused() > before + 2)
        assert peer.status(read(1, 0)) is Status.OK
        allow_collection(tmp_path / "a", 3)
        assert eventually(lambda: [peer.status(read(ledger_id, 0)) for ledger_id in (1, 2, 3)] == [Status.NO_LEDGER] * 3)
        assert eventually(lambda: not (tmp_path / "a" / TOLD).exists())
        assert [peer.status(read(ledger_id, 0)) for ledger_id in (4, 5)] == [Status.OK] * 2


def test_an_agreement_that_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="not the directory of an embedded bookie"):
        allow_collection(tmp_path, 5)
    with pytest.raises(InvalidArgumentError, match="at least one"):
        allow_collection(tmp_path, 0)


def test_bke_1_limbo_is_not_left_because_the_metadata_store_is_empty(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BKE-1, B-10: "the ledger is gone" ends limbo, so it is not believed either when the store has lost this bookie's cookie as well."""
    with EmbeddedBookie(tmp_path / "a", store=store) as bookie:
        mine = bookie.bookie_id
    lose(tmp_path / "a")
    store.create_ledger(1, encode(metadata((0, (mine, "127.0.0.1:1")))))
    with EmbeddedBookie(tmp_path / "a", store=store, options=REFILL) as bookie, peer_of(bookie) as peer:
        assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE
        cookie = store.read_cookie(mine)
        store.delete_cookie(mine, cookie.version)
        store.delete_ledger(1)
        assert eventually(lambda: "BK-COLLECTION-REFUSED" in caplog.text)
        assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE
        assert loss_file(tmp_path / "a").exists()
        store.write_cookie(mine, cookie.data, None)
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_ENTRY)


class OneServerLacks(MemoryStore):
    """The server that is read lacks the ledgers in ``lacks``, which most servers have. With ``contradicts`` the other servers are
    asked one by one and say so."""

    lacks: frozenset[int] = frozenset()
    contradicts = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[list[int]] = []

    def list_ledgers(self) -> Iterator[int]:
        return iter([ledger_id for ledger_id in super().list_ledgers() if ledger_id not in self.lacks])

    def read_ledger(self, ledger_id: int) -> Versioned:
        if ledger_id in self.lacks:
            raise NoNodeError(f"ledger {ledger_id}")
        return super().read_ledger(ledger_id)

    def gone_ledgers(self, ledger_ids: Iterable[int]) -> list[int]:
        self.asked.append(list(ledger_ids))
        if self.contradicts:
            raise MetadataContradictionError("b has a ledger that a has not")
        return super().gone_ledgers(self.asked[-1])


@pytest.fixture
def behind() -> Iterator[OneServerLacks]:
    store = OneServerLacks(uuid.uuid4().hex)
    store.initialize_cluster()
    yield store
    store.close()


def test_bke_10_limbo_is_not_left_on_the_word_of_one_server(
    behind: OneServerLacks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BKE-10, B-10, RC-27: a server that is behind, or has forgotten a ledger, ends no limbo, and nothing is denied for it. The other
    servers are asked only about what seems to be gone."""
    with EmbeddedBookie(tmp_path / "a", store=behind) as bookie:
        opened = metadata((0, (bookie.bookie_id, "127.0.0.1:1")))
        for ledger_id in (1, 2):
            behind.create_ledger(ledger_id, encode(opened))
            fill(bookie, ledger_id, [0])
    lose(tmp_path / "a")
    with EmbeddedBookie(tmp_path / "a", store=behind, options=REFILL) as bookie, peer_of(bookie) as peer:
        behind.lacks = frozenset({1})
        for behind.contradicts in (False, True):
            rounds = len(behind.asked)
            assert eventually(lambda before=rounds: len(behind.asked) > before + 2)  # type: ignore[misc]
            assert {peer.status(read(ledger_id, 0)) for ledger_id in (1, 2)} == {Status.UNKNOWN_LEDGER_STATE}
        assert eventually(lambda: "BK-COLLECTION-REFUSED" in caplog.text and "b has a ledger that a has not" in caplog.text)
        assert loss_file(tmp_path / "a").exists()
        assert all(asked == [1] for asked in behind.asked)
        behind.contradicts = False
        behind.delete_ledger(1)
        assert eventually(lambda: peer.status(read(1, 0)) is Status.NO_ENTRY)
        assert peer.status(read(2, 0)) is Status.UNKNOWN_LEDGER_STATE


def test_bke_10_a_closed_ledger_that_one_server_does_not_list_is_fetched(behind: OneServerLacks, tmp_path: Path) -> None:
    """BKE-10, RC-27: it was marked when the bookie started, so the loss is not forgotten before its entries are here."""
    with EmbeddedBookie(tmp_path / "b", store=behind) as other:
        with EmbeddedBookie(tmp_path / "a", store=behind) as bookie:
            pair = metadata((0, (bookie.bookie_id, other.bookie_id)))
        behind.create_ledger(1, encode(pair.closed(0, 7)))
        fill(other, 1, [0])
        lose(tmp_path / "a")

        def mark(*args: Any) -> int:
            count = mark_losses(*args)
            behind.lacks = frozenset({1})
            return count

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bk_core.bookie.embedded.mark_losses", mark)
            with EmbeddedBookie(tmp_path / "a", store=behind, options=REFILL) as bookie, peer_of(bookie) as peer:
                assert eventually(lambda: len(behind.asked) > 2)
                assert loss_file(tmp_path / "a").exists()
                behind.lacks = frozenset()
                assert eventually(lambda: peer.status(read(1, 0)) is Status.OK)
                assert eventually(lambda: not loss_file(tmp_path / "a").exists())


@pytest.mark.parametrize("contradicts", [False, True])
def test_bke_10_what_is_listed_and_not_found_is_marked_as_lost(behind: OneServerLacks, tmp_path: Path, contradicts: bool) -> None:
    """BKE-10, RC-26: the server that was asked for the metadata may be behind the one that made the list."""
    with EmbeddedBookie(tmp_path / "a", store=behind) as bookie:
        behind.create_ledger(1, encode(metadata((0, (bookie.bookie_id, "127.0.0.1:1")))))
        fill(bookie, 1, [0])
    lose(tmp_path / "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneServerLacks, "list_ledgers", MemoryStore.list_ledgers)
        behind.lacks, behind.contradicts = frozenset({1}), contradicts
        with EmbeddedBookie(tmp_path / "a", store=behind, options=REFILL) as bookie, peer_of(bookie) as peer:
            assert peer.status(read(1, 0)) is Status.UNKNOWN_LEDGER_STATE
            assert peer.status(add(1, 1)) is Status.FENCED
