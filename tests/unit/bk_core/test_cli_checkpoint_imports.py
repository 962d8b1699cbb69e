"""``bk checkpoint import`` when it is killed, interrupted or taken over: the files are the old ones or the new ones, all of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.client.checkpoints import folders
from bk_core.client.checkpoints.folders import import_files, scan
from bk_core.client.files import imports, upkeep
from bk_core.client.files.imports import delete_unfinished_imports, is_of_import
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import file_stores
from bk_core.client.files.view import FileStoreView
from bk_core.client.log import live_writers
from bk_core.client.log.lists import create_log
from bk_core.errors import (
    FileDataLostError,
    FileStoreError,
    FileStoreTakenOverError,
    LogWriterAliveError,
    PathExistsError,
)
from tests.unit.bk_core.conftest import Bk


def small(folder: Path, text: str, *more: str) -> Path:
    """A checkpoint of some small files that all have this text."""
    for path in ("metadata", "offsets/0", *more):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(client: bk_core.BookKeeper) -> dict[str, bytes]:
    with FileStoreView.open(client, "q") as view:
        return {status.path: view.read(status.path) for status, content in view.everything() if content is not None}


OLD, NEW = {f"/{path}": b"old" for path in ("metadata", "offsets/0", "commits/0")}, {"/metadata": b"new", "/offsets/0": b"new"}
OLD["/state/0/1.delta"], NEW["/state/0/1.delta"] = b"old" * 50_000, b"new" * 50_000  # more than a record takes


@pytest.fixture
def replacement(client: bk_core.BookKeeper, tmp_path: Path) -> folders.Plan:
    """The new files that are to replace the old ones of checkpoint q."""
    old, new = small(tmp_path / "old", "old", "commits/0", "state/0/1.delta"), small(tmp_path / "new", "new", "state/0/1.delta")
    for folder, files in ((old, OLD), (new, NEW)):
        (folder / "state/0/1.delta").write_bytes(files["/state/0/1.delta"])
    import_files(client, "q", scan(old), b"", existed=False)
    assert stored(client) == OLD
    return scan(new)


def own(client: bk_core.BookKeeper) -> dict[str, bytes]:
    """The files of checkpoint q without those of an import that is not done."""
    return {path: data for path, data in stored(client).items() if not is_of_import(path)}


def tells_of_import(told: str) -> bool:
    """Return True for the words about an import that was killed, whose last change is confirmed to readers, or not."""
    before = "an import of it goes on, or was killed before it was done: "
    seen = (
        "its owner, an import, ended without closing it, and its last change is not confirmed, so it may not be shown; `bk checkpoint gc q`"
    )
    return f"checkpoint q: {before}" in told or f"checkpoint q: {seen}" in told


def data_of(client: bk_core.BookKeeper) -> list[int]:
    return sorted(node.ledger_id for node in data_nodes(client, "files.q"))


def restarted(client: bk_core.BookKeeper) -> None:
    """As ``checkpoint_location`` opens it."""
    with FileStore.open(client, "q") as store:
        delete_unfinished_imports(store)


class KilledError(BaseException):
    """The process of an import was killed, as far as its store can tell."""


@pytest.fixture
def killed(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Imports into checkpoint q, and kills the import behind that many changes of the store: it does nothing more there, whatever it would,
    and counts as gone. False if it had no more to do than to close the store."""
    monkeypatch.setattr(live_writers, "lives_here", lambda _writer: False)
    for module in (live_writers, imports):
        monkeypatch.setattr(module, "abandoned", lambda _writer: True)

    def run(plan: folders.Plan, changes: int, **how: bool) -> bool:
        change, asked_for = FileStore._change, 0

        def changed(store: FileStore, *asked: Any, **more: Any) -> Any:
            nonlocal asked_for
            asked_for += 1
            if asked_for > changes:
                raise KilledError
            return change(store, *asked, **more)

        def closed(store: FileStore) -> None:
            store.abandon()
            raise KilledError

        def deleted(*_: Any, **__: Any) -> None:
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "_change", changed)
            patched.setattr(FileStore, "close", closed)
            patched.setattr(upkeep, "delete_if_unused", deleted)
            with pytest.raises((KilledError, FileStoreError)):
                import_files(client, "q", plan, b"", **how)
        return asked_for > changes

    return run


@pytest.mark.parametrize("by", ["gc", *(pytest.param(by, marks=pytest.mark.deep) for by in ("query", "import"))])
def test_a_replacement_that_is_killed_leaves_all_old_files_or_all_new_ones(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, killed: Callable[..., bool], tmp_path: Path, by: str
) -> None:
    """Behind each of its changes. Readers see no other files, and the next owner leaves none."""
    died, found = True, []
    while died:
        died = killed(replacement, len(found), existed=True, replace=True)
        with suppress(FileDataLostError) if not died else nullcontext():  # old files may be listed until the last change is confirmed
            assert own(client) in (OLD, NEW), f"beside the owner that died behind {len(found)} changes"
        if by == "gc":
            bk("gc", "q")
        elif by == "query":
            restarted(client)
        else:
            bk("import", "q", tmp_path / "new", "--replace", "--yes")
        found.append(stored(client))
        assert found[-1] in (OLD, NEW), f"behind {len(found) - 1} changes"
        bk("gc", "q")
        with FileStoreView.open(client, "q") as view:
            assert data_of(client) == sorted(view.ledgers() or ())
        import_files(client, "q", scan(tmp_path / "old"), b"", existed=True, replace=True)
    assert len(found) > 8  # four folders, three files, and the change that counts
    assert found == [NEW] * len(found) if by == "import" else found == [OLD] * (len(found) - 1) + [NEW]


@pytest.mark.parametrize("by", [pytest.param("gc", marks=pytest.mark.deep), "import"])
def test_a_first_import_that_is_killed_is_no_checkpoint_and_can_be_tried_again(
    bk: Bk, client: bk_core.BookKeeper, killed: Callable[..., bool], tmp_path: Path, by: str
) -> None:
    """Behind each of its changes but the last one, which makes it whole."""
    source = small(tmp_path / "new", "new", "commits/0")
    died, changes = True, 0
    while died:
        died = killed(scan(source), changes, existed=False)
        assert own(client) in ({}, dict.fromkeys(OLD.keys() - {"/state/0/1.delta"}, b"new"))
        if died and changes > 1:
            assert bk("ls").endswith("\n0 checkpoints\n") and tells_of_import(bk.err)
        if not died:
            bk("import", "q", small(tmp_path / "other", "other"), status=1)
            assert "[BK-FILES-EXISTS]" in bk.err
        elif by == "import":
            bk("import", "q", source)
            assert len(stored(client)) == 3
        else:
            told = bk("gc", "q")
            assert f"{', 1 killed import deleted' if changes else ''}, and the checkpoint, which had nothing else" in told
            assert file_stores(client, remains=True) == []
        if by == "import" or not died:
            bk("rm", "q", "--yes")
        assert list(client.list_ledgers()) == []
        changes += 1
    assert changes > 7  # three folders, three files, and the change that counts


def test_what_a_killed_import_left_is_told_and_is_no_part_of_the_checkpoint(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, killed: Callable[..., bool], tmp_path: Path
) -> None:
    assert killed(replacement, 7, existed=True, replace=True)
    assert [one["checkpoint"] for one in bk.json("ls")] == ["q"] and tells_of_import(bk.err)
    assert {one["path"] for one in bk.json("ls", "q")} == {"/commits", "/metadata", "/offsets", "/state"} and tells_of_import(bk.err)
    assert bk.json("ls")[0]["files"] == len(OLD)
    bk("export", "q", tmp_path / "out")
    assert {f"/{path}": data for path, data in contents(tmp_path / "out").items()} == OLD and tells_of_import(bk.err)
    assert bk("cat", "q", "metadata") == "old" and tells_of_import(bk.err)
    bk("import", "q", tmp_path / "new", status=1)
    assert "[BK-FILES-EXISTS]" in bk.err and "--replace" in bk.err
    (told,) = bk.json("gc", "q")
    assert (told["imports"], told["isGone"]) == (1, False) and stored(client) == OLD
    assert bk("ls") and bk.err == ""


@pytest.mark.parametrize("existed", [False, True])
def test_of_two_imports_at_the_same_time_one_wins(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    source, how = small(tmp_path / "in", "text"), ["--replace", "--yes"] if existed else []
    if existed:
        bk("import", "q", small(tmp_path / "before", "before"))
    put_all, others = folders._put_all, []

    def meanwhile(*asked: Any) -> Any:
        done = put_all(*asked)
        bk("import", "q", source, *how, status=1)
        others.append(bk.err)
        return done

    monkeypatch.setattr(folders, "_put_all", meanwhile)
    bk("import", "q", source, *how)
    (other,) = others
    assert "[BK-LOG-WRITER-ALIVE]" in other and "checkpoint 'q' is open in this program, process" in other
    assert stored(client) == {"/metadata": b"text", "/offsets/0": b"text"}


@pytest.mark.parametrize("is_done", [False, True])
def test_an_interrupt_at_the_change_that_counts_leaves_all_old_files_or_all_new_ones(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """One that comes too late is not told: the import is done."""
    replace_all = FileStore.replace_all

    def interrupted(store: FileStore, src: str) -> None:
        if is_done:
            replace_all(store, src)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "replace_all", interrupted)
        with suppress(KeyboardInterrupt) if is_done else pytest.raises(KeyboardInterrupt):
            import_files(client, "q", replacement, b"", existed=True, replace=True)
    assert stored(client) == (NEW if is_done else OLD)
    with FileStoreView.open(client, "q") as view:
        assert not [one.name for one in view.listing("/") if one.name.startswith(".")]


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_behind_the_change_that_counts_is_too_late(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """One in the close is not told; after two of them the words say that the import is done."""
    close, left = FileStore.close, [KeyboardInterrupt] * times

    def interrupted(store: FileStore, *asked: Any) -> None:
        if left:
            raise left.pop()
        close(store, *asked)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "close", interrupted)
        said = bk("import", "q", replacement.root, "--replace", "--yes", "--even-if-alive", status=times - 1)
    if times == 1:
        assert "3 files" in said and bk.err == ""
    else:
        assert "is done, all its files are in place" in bk.err and "`bk checkpoint gc q`" in bk.err
        restarted(client)
    assert stored(client) == NEW


def test_a_change_that_was_acknowledged_and_not_confirmed_is_told_and_finished(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, killed: Callable[..., bool], tmp_path: Path
) -> None:
    """The import is killed right behind the change that makes it whole, while readers see the files from before."""
    assert not killed(replacement, 99, existed=True, replace=True)
    is_seen = own(client) == NEW  # on a slow machine
    bk("ls")
    assert is_seen or ("its last change is not confirmed, so it may not be shown" in bk.err and "all of them" not in bk.err)
    told = bk("gc", "q")
    assert is_seen or "a killed import finished: its files are in place" in told
    assert stored(client) == NEW
    assert bk("ls") and bk.err == ""


def test_a_first_import_that_was_killed_behind_its_change_can_be_tried_again(
    bk: Bk, client: bk_core.BookKeeper, killed: Callable[..., bool], tmp_path: Path
) -> None:
    source = small(tmp_path / "new", "new", "commits/0")
    assert not killed(scan(source), 99, existed=False)
    if not own(client):  # else it shows as a checkpoint already
        assert "3 files" in bk("import", "q", source)
    assert len(stored(client)) == 3
    assert not killed(scan(source), 99, existed=True, replace=True)


def test_a_first_import_that_was_killed_is_not_taken_for_one_of_other_files(
    bk: Bk, client: bk_core.BookKeeper, killed: Callable[..., bool], tmp_path: Path
) -> None:
    assert not killed(scan(small(tmp_path / "new", "new", "commits/0")), 99, existed=False)
    bk("import", "q", small(tmp_path / "other", "other", "commits/0"), status=1)
    assert "[BK-FILES-EXISTS]" in bk.err and set(stored(client).values()) == {b"new"}


def test_a_checkpoint_without_any_file_is_told(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    bk_core.own_file_store(client, "q").close()
    bk("ls", "q")
    assert "checkpoint q has no files: a query opened it and had not begun" in bk.err
    assert "0 ledgers deleted\n" in bk("gc", "q") and file_stores(client) == ["q"]
    bk("export", "q", tmp_path / "copy", status=1)
    assert "/ of checkpoint 'q' has nothing in it, so nothing was copied" in bk.err
    assert [one.name for one in tmp_path.iterdir()] == ["bookies"]


def test_an_import_that_is_killed_before_its_first_file_is_told_and_collected(
    bk: Bk, client: bk_core.BookKeeper, killed: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while its process may live: it may be about to open the store that it made. Behind another import of the same name, too, that
    failed."""
    source = small(tmp_path / "new", "new")
    assert killed(scan(source), 0, existed=False)
    bk("ls", "q")
    bk("export", "q", tmp_path / "copy", status=1)
    assert "/ of checkpoint 'q' has nothing in it, so nothing was copied" in bk.err and not (tmp_path / "copy").exists()
    with monkeypatch.context() as patched:
        patched.setattr(imports, "abandoned", lambda _process: False)
        assert bk("gc", "q") == "checkpoint q: 0 ledgers deleted\n"
        bk("ls", "q")
        assert "an import of it has just begun, or was killed before its first file; import it again. `bk checkpoint gc q`" in bk.err
        patched.setattr(folders, "_fill", failing)
        bk("import", "q", source, status=1)
        assert file_stores(client) == ["q"]
    monkeypatch.setattr(folders, "_fill", failing)
    bk("import", "q", source, status=1)
    assert file_stores(client, remains=True) == [] and list(client.list_ledgers()) == []
    create_log(client, "files.q", file_entries=True, extra=imports.import_mark())  # killed before it made a ledger
    assert bk("gc", "q") == "checkpoint q: 0 ledgers deleted, and the checkpoint, which had nothing else\n"


def test_an_imported_checkpoint_that_is_emptied_is_not_taken_for_an_unfinished_import(
    bk: Bk, client: bk_core.BookKeeper, tmp_path: Path
) -> None:
    bk("import", "q", small(tmp_path / "new", "new"))
    assert not imports.is_made_by_import(client, "files.q")
    with bk_core.own_file_store(client, "q") as store:
        for path in [one.path for one in store.listing("/")]:
            store.delete(path, recursive=True)
    bk("ls", "q")
    assert "checkpoint q has no files: a query opened it and had not begun, or put none there so far" in bk.err
    assert bk("gc", "q") == "checkpoint q: 0 ledgers deleted\n" and file_stores(client) == ["q"]


def test_an_interrupt_while_the_store_is_made_says_what_may_be_left(bk: Bk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(upkeep, "own_for_import", interrupted)
    bk("import", "q", small(tmp_path / "new", "new"), status=130)
    assert "interrupted before it copied anything. There may be an empty checkpoint of this name: `bk checkpoint gc q` deletes it" in bk.err


def failing(*_: Any) -> Any:
    raise FileStoreError("no room")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_the_change_that_counts_says_that_nothing_was_changed(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    put_all = folders._put_all

    def interrupted(*asked: Any) -> Any:
        put_all(*asked)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(folders, "_put_all", interrupted)
        for command in (("q", replacement.root, "--replace", "--yes"), ("new", replacement.root)):
            bk("import", *command, status=128 + number)
            assert f"checkpoint {command[0]}: the import was interrupted before its files took their place; nothing was changed" in bk.err
    assert stored(client) == OLD and file_stores(client, remains=True) == ["q"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_while_the_folder_is_made_leaves_no_folder(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the change that makes the folder is on its way and not acknowledged, so that nobody sees it yet."""
    own = upkeep.own_for_import

    def owned(*asked: Any, **options: Any) -> FileStore:
        store = own(*asked, **options)
        append = store._writer.append_future

        def late(record: bytes) -> Future[Any]:
            store._writer.append_future = append  # type: ignore[method-assign]
            acknowledged, told = append(record), Future[Any]()
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.5, lambda: told.set_result(acknowledged.result(60))).start()
            return told

        store._writer.append_future = late  # type: ignore[method-assign]
        return store

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "own_for_import", owned)
        bk("import", "q", replacement.root, "--replace", "--yes", status=143)
    assert "the import was interrupted before its files took their place; nothing was changed" in bk.err
    with FileStoreView.open(client, "q") as view:
        assert imports.unfinished_imports(view)[0] == []
    assert stored(client) == OLD


def stall(store: FileStore, *, is_done: bool) -> None:
    """From now on nobody who asks the store for a change is answered in time. ``is_done``: the changes are made."""
    append = store._writer.append_future

    def unanswered(record: bytes) -> Future[Any]:
        if is_done:
            append(record)
        return Future()

    store._writer.append_future = unanswered  # type: ignore[assignment, method-assign]
    store._timeout_s = 0.1


@pytest.mark.parametrize("by", ["gc", "import"])
@pytest.mark.parametrize("is_done", [False, True])
def test_an_import_whose_one_change_is_not_answered_says_what_is_known(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, is_done: bool, by: str
) -> None:
    replace_all = FileStore.replace_all

    def stalled(store: FileStore, src: str) -> None:
        stall(store, is_done=is_done)
        replace_all(store, src)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "replace_all", stalled)
        bk("import", "q", replacement.root, "--replace", "--yes", status=1)
    for word in (
        "the import into checkpoint 'q' was ended while it put the new files in place of the old ones (OperationTimeoutError(",
        "nobody knows yet if that happened, and it has all of the old files or all of the new ones; `bk checkpoint ls q` tells which",
        "the same import again, or `bk checkpoint gc q`, finishes it",
    ):
        assert word in bk.err
    for verdict, found in (("lives_here", False), ("abandoned", True)):
        monkeypatch.setattr(live_writers, verdict, lambda _writer, found=found: found)
    if by == "gc":
        bk("gc", "q")
        assert stored(client) == (NEW if is_done else OLD)
    bk("import", "q", replacement.root, "--replace", "--yes")
    assert stored(client) == NEW


def test_an_import_that_times_out_before_the_change_that_counts_says_that_nothing_was_changed(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FileStore.put

    def stalled(store: FileStore, path: str, data: Any) -> Any:
        stall(store, is_done=False)
        return put(store, path, b"")

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "put", stalled)
        bk("import", "q", replacement.root, "--replace", "--yes", status=1)
    assert "the import into checkpoint 'q' timed out before its files took their place, so nothing was changed: " in bk.err
    assert "Import it again when the cluster answers" in bk.err
    assert own(client) == OLD


def test_an_import_that_was_taken_over_at_the_change_that_counts_tells_what_there_may_be(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_all = FileStore.replace_all

    def taken_over(store: FileStore, src: str) -> None:
        with FileStore.open(client, "q") as other:
            delete_unfinished_imports(other)
        replace_all(store, src)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "replace_all", taken_over)
        with pytest.raises(FileStoreError, match=r"all of the old files or all of the new ones; `bk checkpoint ls q` tells which"):
            import_files(client, "q", replacement, b"", existed=True, replace=True)
    assert stored(client) == OLD


def test_an_import_leaves_the_store_alone_that_somebody_else_opens_or_makes_meanwhile(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = upkeep._refuse_owned
    others: list[FileStore] = []

    def came_in_between(*asked: Any) -> None:
        refuse(*asked)
        others.append(FileStore.open(client, "q"))

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "_refuse_owned", came_in_between)
        with pytest.raises(FileStoreTakenOverError):
            import_files(client, "q", replacement, b"", existed=True, replace=True)
    with others[0] as other:
        other.flush()
        with pytest.raises(LogWriterAliveError):
            import_files(client, "q", replacement, b"", existed=False)
        other.flush()
    with pytest.raises(PathExistsError, match="somebody else has made"):
        import_files(client, "q", replacement, b"", existed=False)
    assert stored(client) == OLD


def test_an_import_that_was_taken_over_leaves_the_store_to_the_other_owner(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all = folders._put_all

    def taken_over(*arguments: Any) -> Any:
        with FileStore.open(client, "new") as other:
            other.put("/a", b"a")
        return put_all(*arguments)

    monkeypatch.setattr(folders, "_put_all", taken_over)
    with pytest.raises(FileStoreTakenOverError):
        import_files(client, "new", replacement, b"", existed=False)
    with FileStoreView.open(client, "new") as view:
        assert view.read("/a") == b"a"


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_an_interrupted_import_leaves_a_store_that_another_owner_took_over_unnoticed(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The other owner comes when the import has ended its own, and has not yet deleted what it made."""
    others: list[FileStore] = []

    def then_taken_over(end: Callable[[FileStore], None]) -> Callable[[FileStore], None]:
        def ended(store: FileStore) -> None:
            end(store)
            if not others:
                others.append(FileStore.open(client, "new"))
                others[0].put("/offsets/0", b"precious")
                if not is_open:
                    others[0].close()

        return ended

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "_put_all", interrupted)
    for way in ("close", "abandon"):
        monkeypatch.setattr(FileStore, way, then_taken_over(getattr(FileStore, way)))
    with pytest.raises(KeyboardInterrupt):
        import_files(client, "new", replacement, b"", existed=False)
    if is_open:
        others[0].put("/offsets/1", b"more")
        others[0].close()
    with FileStoreView.open(client, "new") as view:
        assert view.read("/offsets/0") == b"precious"


def test_a_checkpoint_that_is_made_while_an_import_begins_is_neither_replaced_nor_deleted(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = upkeep.own_for_import

    def made_before(*asked: Any, **more: Any) -> FileStore:
        with bk_core.own_file_store(client, "new", create=True) as other:
            other.put("/offsets/0", b"precious")
        return own(*asked, **more)

    monkeypatch.setattr(upkeep, "own_for_import", made_before)
    with pytest.raises(PathExistsError, match="somebody else has made a checkpoint 'new' meanwhile"):
        import_files(client, "new", replacement, b"", existed=False, replace=True)
    with FileStoreView.open(client, "new") as view:
        assert view.read("/offsets/0") == b"precious"


def test_a_store_that_is_opened_and_filled_while_it_is_deleted_as_unused_stays(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = upkeep.unfinished_imports

    def filled_behind(view: Any) -> Any:
        found = everything(view)
        with FileStore.open(client, "new") as other:
            other.put("/offsets/0", b"precious")
        return found

    with bk_core.own_file_store(client, "new") as store:
        store.put(f"/.importing-{'0' * 32}/metadata", b"m")
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "unfinished_imports", filled_behind)
        assert upkeep.delete_if_unused(client, "new", b"") is None
    with FileStoreView.open(client, "new") as view:
        assert view.read("/offsets/0") == b"precious"


def test_an_import_that_is_interrupted_leaves_no_store_where_there_was_only_a_killed_one(
    bk: Bk, client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with bk_core.own_file_store(client, "new") as store:
        store.put(f"/.importing-{'0' * 32}/metadata", b"m")
    monkeypatch.setattr(folders, "_put_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_files(client, "new", replacement, b"", existed=True)
    assert "new" not in bk_core.file_stores(client, remains=True)


@pytest.mark.parametrize("existed", [False, True])
def test_an_import_that_is_interrupted_before_it_looks_gives_the_store_back(
    client: bk_core.BookKeeper, replacement: folders.Plan, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """The store is not owned for as long as somebody keeps the error, one that was made for the import is gone, and that is told."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    name, said = "q" if existed else "new", list[str]()
    before = stored(client)
    with monkeypatch.context() as patched:
        patched.setattr(folders, "unfinished_imports", interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:
            import_files(client, name, replacement, b"", existed=existed, replace=existed, on_interrupt=said.append)
    assert said == [f"checkpoint {name}: the import was interrupted before its files took their place; nothing was changed"]
    assert (name in bk_core.file_stores(client, remains=True)) is existed and stored(client) == before
    import_files(client, name, replacement, b"", existed=existed, replace=existed)
    assert kept.value is not None
