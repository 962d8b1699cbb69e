"""Paths in normal form."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, InvalidPathError
from bk_core.protocol.files.paths import PART_MAX, PATH_MAX, byte_length, is_below, join, normal, parent, parts


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", "/"),
        ("/a", "/a"),
        ("/a/", "/a"),
        ("/a/b.c/..d", "/a/b.c/..d"),
        ("/ä/ ", "/ä/ "),
        ("/a\nb/😀", "/a\nb/😀"),
        ("/a:b\\c", "/a:b\\c"),
    ],
)
def test_fs_1_a_path_in_normal_form_stays_as_it_is(path: str, wanted: str) -> None:
    """FS-1."""
    assert normal(path) == wanted
    assert normal(wanted) == wanted


@pytest.mark.parametrize(
    "path", ["", "a", "a/b", "//", "//a", "/a//b", "/a//", "/.", "/..", "/a/./b", "/a/../b", "/a/..", "/a\0", "/\ud800", "/a\udc80/b"]
)
def test_fs_1_other_paths_are_refused(path: str) -> None:
    """FS-1."""
    with pytest.raises(InvalidPathError) as caught:
        normal(path)
    assert isinstance(caught.value, InvalidArgumentError)
    str(caught.value).encode()  # a message can always be printed


@pytest.mark.parametrize("path", [None, b"/a", 3, ["/a"]])
def test_a_path_is_text(path: Any) -> None:
    with pytest.raises(InvalidPathError, match="text"):
        normal(path)


def test_fs_1_parts_and_paths_are_bounded_in_bytes() -> None:
    """FS-1."""
    assert normal("/" + "a" * PART_MAX)
    assert normal("/" + "ä" * (PART_MAX // 2))
    for part in ("a" * (PART_MAX + 1), "ä" * (PART_MAX // 2 + 1), "😀" * 64):
        with pytest.raises(InvalidPathError, match="part of 25"):
            normal(f"/b/{part}")
    longest = "/" + "/".join(["a" * 249] * 32)
    assert byte_length(longest) == PATH_MAX and normal(longest) == longest == normal(longest + "/")
    with pytest.raises(InvalidPathError, match="8001 bytes"):
        normal(longest + "a")
    with pytest.raises(InvalidPathError, match="bytes"):
        normal("/" + "/".join(["ä" * 120] * 34))


def test_a_message_does_not_repeat_a_path_of_any_length() -> None:
    with pytest.raises(InvalidPathError) as caught:
        normal("a" * 1_000_000)
    assert len(str(caught.value)) < 400


def test_parts_of_paths() -> None:
    assert parts("/") == [] and parts("/a/b") == ["a", "b"]
    assert [parent(path) for path in ("/", "/a", "/a/b")] == ["/", "/", "/a"]
    assert join("/", "a") == "/a" and join("/a", "b") == "/a/b"
    assert (
        is_below("/a", "/")
        and is_below("/a/b/c", "/a")
        and not is_below("/a", "/a")
        and not is_below("/ab", "/a")
        and not is_below("/", "/")
    )
