"""Reading a tree, and records that do not fit it."""

from __future__ import annotations

import pytest

from bk_core.errors import FileStoreFormatError, InvalidPathError, NoSuchPathError, PathIsDirectoryError
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.records import Change, Delete, Mkdirs, Put, Rename, ReplaceAll
from bk_core.protocol.files.tree import FileTree
from tests.unit.files.store_world import inline, large, shape


@pytest.fixture
def tree() -> FileTree:
    tree = FileTree()
    for record in (Put("/b/f", large(7, 8), 1, 2, 1), Mkdirs("/a/c", 2, 4, 2), Put("/b/e", inline("xy"), 3, 6)):
        tree.apply(record)
    return tree


def test_reading(tree: FileTree) -> None:
    assert tree.status("/") == FileStatus("/", True, 0, 2, 1, 2)
    assert tree.status("/b/f/") == FileStatus("/b/f", False, 20, 1, 3)
    assert tree.status("/b/f").name == "f" and tree.status("/").name == ""
    assert [one.path for one in tree.listing("/")] == ["/a", "/b"]
    assert [one.path for one in tree.listing("/b")] == ["/b/e", "/b/f"]
    assert tree.listing("/b/e") == [tree.status("/b/e")] and tree.listing("/a/c") == []
    assert tree.content("/b/f") == large(7, 8) and tree.content("/b/e") == Content(b"xy")
    assert tree.exists("/a/c") and tree.exists("/") and not tree.exists("/a/x") and not tree.exists("/b/f/x")
    assert [one.path for one in tree.walk()] == ["/", "/a", "/a/c", "/b", "/b/e", "/b/f"]
    assert [one.path for one in tree.walk("/b")] == ["/b", "/b/e", "/b/f"]
    assert tree.ledgers == {7: 1, 8: 1} and tree.count == 5 and tree.next_id == 7


def test_reading_what_is_not_there(tree: FileTree) -> None:
    for read in (tree.status, tree.listing, tree.content, lambda path: list(tree.walk(path))):
        for path in ("/x", "/b/f/x", "/a/c/x/y"):
            with pytest.raises(NoSuchPathError) as caught:
                read(path)
            assert isinstance(caught.value, FileNotFoundError)
        with pytest.raises(InvalidPathError):
            read("b")
    with pytest.raises(PathIsDirectoryError):
        tree.content("/a")


def test_what_becomes_unreferenced_is_told_once(tree: FileTree) -> None:
    tree.apply(Put("/a/f", large(7, 7), 4, 7))
    assert tree.ledgers == {7: 3, 8: 1}
    assert tree.apply(Put("/b/f", inline("x"), 5, 8)) == [8]
    assert tree.apply(Put("/a/g", large(9), 5, 9)) == ()
    assert tree.apply(Rename("/a/g", "/a/f", 6)) == [7]
    assert tree.apply(Delete("/", 7)) == [9] and tree.ledgers == {} and tree.count == 0


def test_a_file_that_is_put_again_with_the_same_ledger_lets_go_of_nothing(tree: FileTree) -> None:
    assert tree.apply(Put("/b/f", large(7, 8), 4, 7)) == [] and tree.ledgers == {7: 1, 8: 1}


def test_fs_20_a_directory_takes_the_place_of_all_files(tree: FileTree) -> None:
    """FS-20: what it holds keeps ids, times and data ledgers; what goes is counted and lets go of its own ledgers alone."""
    tree.apply(Put("/a/c/b/new", large(8, 9), 4, 7, 1))
    tree.apply(Put("/a/c/f", inline("x"), 5, 9))
    assert tree.apply(ReplaceAll("/a/c", 6)) == [7]
    assert [one.path for one in tree.walk()] == ["/", "/b", "/b/new", "/f"] and tree.count == 3
    assert tree.status("/") == FileStatus("/", True, 0, 6, 1, 2) and tree.status("/b/new") == FileStatus("/b/new", False, 20, 4, 8)
    assert tree.ledgers == {8: 1, 9: 1} and tree.next_id == 10
    tree.apply(Mkdirs("/e", 7, 10, 1))
    assert sorted(tree.apply(ReplaceAll("/e", 8))) == [8, 9] and tree.count == 0 and not tree.ledgers


def test_a_copy_goes_its_own_way(tree: FileTree) -> None:
    before = shape(tree)
    copy = tree.copy()
    assert shape(copy) == before and (copy.next_id, copy.count, copy.longest) == (tree.next_id, tree.count, tree.longest)
    copy.apply(Put("/a/c/x", inline("x"), 9, 7))
    copy.apply(Delete("/b", 9))
    assert shape(tree) == before and tree.ledgers == {7: 1, 8: 1} and copy.ledgers == {}
    tree.apply(Delete("/", 9))
    assert copy.exists("/a/c/x")


def test_a_tree_of_any_depth_can_be_walked_copied_and_deleted() -> None:
    tree = FileTree()
    tree.apply(Mkdirs("/a" * 4000, 1, 2, 4000))
    assert tree.count == 4000 == len(list(tree.copy().walk())) - 1 and tree.longest_below("/") == 8000
    tree.apply(Delete("/a", 2))
    assert tree.count == 0


@pytest.mark.parametrize(
    "record",
    [
        Put("/", inline("x"), 1, 7),
        Put("/b", inline("x"), 1, 7),
        Put("/x/y", inline("x"), 1, 7),
        Put("/b/x", inline("x"), 1, 7, 1),
        Put("/x", inline("x"), 1, 7, 1),
        Put("/b/f/x", inline("x"), 1, 7),
        Put("/b/f/x/y", inline("x"), 1, 7, 1),
        Put("/b/x", inline("x"), 1, 6),
        Mkdirs("/x", 1, 7, 0),
        Mkdirs("/x", 1, 7, 2),
        Mkdirs("/b", 1, 7, 1),
        Mkdirs("/", 1, 7, 1),
        Mkdirs("/x/y", 1, 7, 1),
        Mkdirs("/b/f/x", 1, 7, 1),
        Mkdirs("/x/y", 1, 6, 2),
        Delete("/x", 1),
        Delete("/b/f/x", 1),
        Rename("/x", "/y", 1),
        Rename("/x/y", "/y", 1),
        Rename("/a", "/x/y", 1),
        Rename("/a", "/b/f/x", 1),
        Rename("/a", "/b", 1),
        Rename("/a", "/a", 1),
        Rename("/a", "/a/c/x", 1),
        Rename("/", "/x", 1),
        Rename("/a", "/", 1),
        ReplaceAll("/", 1),
        ReplaceAll("/x", 1),
        ReplaceAll("/b/f", 1),
    ],
    ids=str,
)
def test_fs_3_a_record_that_does_not_fit_is_refused(tree: FileTree, record: Change) -> None:
    """FS-3, and FS-5 of a file id that was given before."""
    with pytest.raises(FileStoreFormatError):
        tree.apply(record)


def test_fs_3_nothing_is_deleted_of_an_empty_store() -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError):
        FileTree().apply(Delete("/", 1))
