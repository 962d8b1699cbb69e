"""Operations on one tree: what each makes, what each refuses, and which refusal counts when there are several."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bk_core.errors import (
    DirectoryNotEmptyError,
    InvalidArgumentError,
    InvalidPathError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files import changes
from bk_core.protocol.files.content import Content, Extent, FileStatus
from bk_core.protocol.files.paths import PATH_MAX
from bk_core.protocol.files.records import CONTENT_MAX, Delete, Mkdirs, Put, Rename, ReplaceAll
from bk_core.protocol.files.tree import FileTree
from tests.unit.files.store_world import inline, large


class Store:
    """A tree whose changes are made at once."""

    def __init__(self) -> None:
        self.tree = FileTree()
        self.record: Any = None
        self.clock = 0

    def _make(self, decided: changes.Decided) -> Any:
        self.record = decided.record
        if decided.record is not None:
            self.tree.apply(decided.record)
        return decided.answer(self.tree)

    def put(self, path: str, content: Content | None = None, overwrite: bool = True, parents: bool = True) -> FileStatus:
        self.clock += 1
        return self._make(changes.put(self.tree, path, content or inline(path), overwrite, parents, self.clock))

    def mkdirs(self, path: str) -> FileStatus:
        self.clock += 1
        return self._make(changes.mkdirs(self.tree, path, self.clock))

    def rename(self, src: str, dst: str, overwrite: bool = False) -> FileStatus:
        self.clock += 1
        return self._make(changes.rename(self.tree, src, dst, overwrite, self.clock))

    def delete(self, path: str, recursive: bool = False) -> bool:
        self.clock += 1
        return self._make(changes.delete(self.tree, path, recursive, self.clock))

    def replace_all(self, src: str) -> FileStatus:
        self.clock += 1
        return self._make(changes.replace_all(self.tree, src, self.clock))

    def paths(self) -> list[str]:
        return [status.path for status in self.tree.walk()][1:]


@pytest.fixture
def store() -> Store:
    store = Store()
    store.put("/d/f")
    store.mkdirs("/d/empty")
    store.mkdirs("/e")
    return store


def test_put_makes_the_file_and_what_is_missing_above_it() -> None:
    store = Store()
    status = store.put("/a/b/c", inline("xyz"))
    assert status == FileStatus("/a/b/c", False, 3, 1, 4)
    assert store.record == Put("/a/b/c", inline("xyz"), 1, 2, 2)
    assert store.tree.status("/a/b") == FileStatus("/a/b", True, 0, 1, 3, 1)
    assert store.put("/a/x", parents=False).file_id == 5
    assert store.tree.status("/a") == FileStatus("/a", True, 0, 2, 2, 2)
    assert store.paths() == ["/a", "/a/b", "/a/b/c", "/a/x"]


def test_an_overwritten_file_is_another_file() -> None:
    store = Store()
    first = store.put("/a", inline("1"))
    second = store.put("/a", inline("22"))
    assert second.file_id > first.file_id and second.size == 2
    assert store.tree.content("/a") == inline("22") and store.tree.count == 1


@pytest.mark.parametrize(
    ("path", "overwrite", "parents", "error"),
    [
        ("a", True, True, InvalidPathError),
        ("/", True, True, PathIsDirectoryError),
        ("/d", True, True, PathIsDirectoryError),
        ("/d", False, True, PathIsDirectoryError),
        ("/d/f", False, True, PathExistsError),
        ("/d/f/x", True, True, PathNotDirectoryError),
        ("/d/f/x/y", True, False, PathNotDirectoryError),
        ("/d/x/y", True, False, NoSuchPathError),
    ],
)
def test_put_refuses(store: Store, path: str, overwrite: bool, parents: bool, error: type[Exception]) -> None:
    before = store.paths()
    with pytest.raises(error):
        store.put(path, None, overwrite, parents)
    assert store.paths() == before


def test_mkdirs(store: Store) -> None:
    assert store.mkdirs("/d").path == "/d" and store.record is None
    assert store.mkdirs("/").path == "/" and store.record is None
    assert store.mkdirs("/d/x/y/").path == "/d/x/y" and store.record == Mkdirs("/d/x/y", store.clock, 6, 2)
    with pytest.raises(PathExistsError):
        store.mkdirs("/d/f")
    with pytest.raises(PathNotDirectoryError):
        store.mkdirs("/d/f/x")
    with pytest.raises(InvalidPathError):
        store.mkdirs("/d/../x")


def test_rename_keeps_the_file_and_moves_all_below(store: Store) -> None:
    old = store.tree.status("/d/f")
    status = store.rename("/d", "/e/new")
    assert status.path == "/e/new" and status.children == 2
    assert store.paths() == ["/e", "/e/new", "/e/new/empty", "/e/new/f"]
    moved = store.tree.status("/e/new/f")
    assert (moved.file_id, moved.modified_ms, moved.size) == (old.file_id, old.modified_ms, old.size)
    assert store.tree.status("/").modified_ms == store.tree.status("/e").modified_ms == store.clock


@pytest.mark.parametrize(("src", "dst"), [("/d/f", "/g"), ("/e", "/d/empty")])
def test_rename_replaces_a_file_or_an_empty_directory(store: Store, src: str, dst: str) -> None:
    store.put("/g", large(7))
    count, status = store.tree.count, store.tree.status(src)
    with pytest.raises(PathExistsError):
        store.rename(src, dst)
    assert store.rename(src, dst, overwrite=True).file_id == status.file_id
    assert store.tree.count == count - 1 and not store.tree.exists(src)
    assert store.tree.ledgers == ({} if dst == "/g" else {7: 1})


@pytest.mark.parametrize(
    ("src", "dst", "overwrite", "error"),
    [
        ("/d", "e", False, InvalidPathError),
        ("/", "/x", False, InvalidArgumentError),
        ("/nothing", "/x", False, NoSuchPathError),
        ("/d/f/x", "/x", False, NoSuchPathError),
        ("/nothing", "/nothing/x", True, NoSuchPathError),
        ("/d", "/d/empty/x", True, InvalidArgumentError),
        ("/d/f", "/d/f/x", True, InvalidArgumentError),
        ("/d", "/x/y", True, NoSuchPathError),
        ("/e", "/d/f/x", True, PathNotDirectoryError),
        ("/e", "/d", False, PathExistsError),
        ("/e", "/e", False, PathExistsError),
        ("/d/f", "/d/f", False, PathExistsError),
        ("/e", "/d", True, DirectoryNotEmptyError),
        ("/d/f", "/d", True, PathIsDirectoryError),
        ("/d/f", "/", True, PathIsDirectoryError),
        ("/d/f", "/", False, PathExistsError),
    ],
)
def test_rename_refuses(store: Store, src: str, dst: str, overwrite: bool, error: type[Exception]) -> None:
    before = store.paths()
    with pytest.raises(error):
        store.rename(src, dst, overwrite)
    assert store.paths() == before


@pytest.mark.parametrize(
    ("src", "dst", "error"),
    [("/d/f", "/d/empty", PathIsDirectoryError), ("/d/f", "/e", PathIsDirectoryError), ("/e", "/d/f", PathNotDirectoryError)],
)
def test_fs_19_a_rename_replaces_its_own_kind_alone(store: Store, src: str, dst: str, error: type[Exception]) -> None:
    """FS-19. A log in which an earlier version has done it is read on."""
    before = store.paths()
    with pytest.raises(PathExistsError):
        store.rename(src, dst)
    with pytest.raises(error, match="cannot take its place"):
        store.rename(src, dst, overwrite=True)
    assert store.paths() == before
    store.tree.apply(Rename(src, dst, store.clock))
    assert not store.tree.exists(src) and store.tree.exists(dst)


def test_rename_to_itself_changes_nothing_when_it_may(store: Store) -> None:
    assert store.rename("/d", "/d", overwrite=True).path == "/d" and store.record is None
    assert store.rename("/d/f", "/d/f/", overwrite=True).path == "/d/f" and store.record is None


def test_a_name_that_another_begins_with_is_not_within_it(store: Store) -> None:
    assert store.rename("/d", "/dd").path == "/dd" and store.record == Rename("/d", "/dd", store.clock)


def test_delete(store: Store) -> None:
    assert store.delete("/nothing") is False and store.record is None
    assert store.delete("/d/f/x") is False
    assert store.delete("/e") is True and store.record == Delete("/e", store.clock)
    with pytest.raises(DirectoryNotEmptyError):
        store.delete("/d")
    with pytest.raises(InvalidPathError):
        store.delete("d")
    assert store.delete("/d", recursive=True) is True
    assert store.paths() == [] and store.tree.count == 0


def test_delete_of_the_root_is_of_all_in_it(store: Store) -> None:
    with pytest.raises(DirectoryNotEmptyError):
        store.delete("/")
    assert store.delete("/", recursive=True) is True
    assert store.paths() == [] and store.tree.status("/").modified_ms == store.clock
    assert store.delete("/") is False and store.delete("/", recursive=True) is False


def test_fs_20_what_lies_in_a_directory_takes_the_place_of_all_files(store: Store) -> None:
    """FS-20: also of the directories above it."""
    store.put("/d/deep/new/f")
    kept = store.tree.status("/d/deep/new/f").file_id
    assert store.replace_all("/d/deep/").path == "/" and store.record == ReplaceAll("/d/deep", store.clock)
    assert store.paths() == ["/new", "/new/f"] and store.tree.status("/new/f").file_id == kept
    assert store.tree.status("/").modified_ms == store.clock


@pytest.mark.parametrize(
    ("src", "error"),
    [("d", InvalidPathError), ("/", InvalidArgumentError), ("/nothing", NoSuchPathError), ("/d/f", PathNotDirectoryError)],
)
def test_fs_20_what_cannot_take_the_place_of_all_files(store: Store, src: str, error: type[Exception]) -> None:
    """FS-20."""
    before = store.paths()
    with pytest.raises(error):
        store.replace_all(src)
    assert store.paths() == before


@pytest.mark.parametrize(
    "content",
    [
        Content(b"x", (Extent(1, 0, 0, 1, 1),)),
        Content(extents=(Extent(1, 0, 1, 1, 1),)),
        Content(extents=(Extent(-1, 0, 0, 1, 1),)),
        Content(b"x" * CONTENT_MAX),
        Content(extents=(Extent(1, 0, 0, 1, 1),) * 20_000),
    ],
    ids=["both", "entries", "ledger", "inline", "extents"],
)
def test_put_refuses_a_content_that_no_record_can_hold(store: Store, content: Content) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put("/x", content)
    with pytest.raises(InvalidPathError):  # the first argument counts first
        store.put("x", content)


def deep(store: Store, parts: int) -> None:
    """A directory /x with a path of ``parts`` * 250 + 2 bytes in it."""
    store.mkdirs("/x/" + "/".join(["a" * 249] * parts))


def test_fs_2_a_rename_makes_no_path_too_long() -> None:
    """FS-2."""
    store = Store()
    deep(store, 31)
    room = PATH_MAX - store.tree.longest_below("/x")
    with pytest.raises(InvalidPathError, match="8000"):
        store.rename("/x", "/x" + "y" * (room + 1))
    store.rename("/x", "/x" + "y" * room)
    assert store.tree.longest_below("/") == PATH_MAX
    store.mkdirs("/short")
    with pytest.raises(InvalidPathError):
        store.rename("/x" + "y" * room, "/short/" + "y" * room)
    store.rename("/short", "/longer" * 1 + "r" * 200)  # what is not below it does not count


def test_fs_2_the_bound_of_the_longest_path_is_never_too_low() -> None:
    """FS-2: renaming to and fro may raise it, and a path that is near the limit is still looked at."""
    store = Store()
    store.mkdirs("/a/b")
    for _ in range(300):
        store.rename("/a", "/" + "a" * 200)
        store.rename("/" + "a" * 200, "/a")
        assert store.tree.longest_below("/") <= store.tree.longest <= PATH_MAX
    deep(store, 31)
    with pytest.raises(InvalidPathError):
        store.rename("/x", "/" + "x" * 255)


def test_renaming_a_file_raises_the_bound_to_its_path_alone() -> None:
    """FS-2: so that renaming files to longer paths, however often, makes no later rename look at all that is in a directory."""
    store = Store()
    store.put("/file")
    for _ in range(100):
        store.rename("/file", "/" + "x" * 200)
        store.rename("/" + "x" * 200, "/file")
    assert store.tree.longest == 201


def test_a_directory_of_30000_files_is_cheap() -> None:
    """One more, one less and a look at one do not depend on how many there are."""
    store = Store()
    began = time.process_time()
    for n in range(30_000):
        store.tree.apply(Put(f"/d/{n}", Content(b"x"), 1, store.tree.next_id, int(n == 0)))
    filled = time.process_time() - began
    assert store.tree.count == 30_001 and store.tree.status("/d").children == 30_000
    began = time.process_time()
    for n in range(1000):
        store.delete(f"/d/{n}")
        store.put(f"/d/new-{n}")
        store.rename(f"/d/new-{n}", f"/d/{n}")
    assert time.process_time() - began < max(1.0, filled), "3000 changes of a large directory cost less than filling it"
    listed = store.tree.listing("/d")
    assert len(listed) == 30_000 and [one.path for one in listed[:3]] == ["/d/0", "/d/1", "/d/10"]
    assert store.delete("/d", recursive=True) and store.tree.count == 0
