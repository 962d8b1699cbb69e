"""The one way in which a file is read that may be replaced meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_core.client.files.reading import LOOKS_MAX, present_chunks
from bk_core.errors import FileDataLostError, NoSuchPathError
from bk_core.protocol.files.content import Content


class File:
    """Its next contents, of which the first ``gone`` have lost their bytes."""

    def __init__(self, gone: int, contents: int) -> None:
        self.contents = iter([Content(b"%d" % number) for number in range(contents)])
        self.gone = gone
        self.read: list[bytes] = []

    def content(self) -> Content:
        return next(self.contents)

    def chunks(self, content: Content) -> Iterator[bytes]:
        self.read.append(content.inline)
        if int(content.inline) < self.gone:
            raise FileDataLostError("gone")
        yield content.inline
        yield b"."


@pytest.mark.parametrize("gone", range(LOOKS_MAX))
def test_a_file_that_was_replaced_is_looked_for_again(gone: int) -> None:
    file = File(gone, LOOKS_MAX)
    assert list(present_chunks(file.content, file.chunks)) == [b"%d" % gone, b"."]
    assert file.read == [b"%d" % number for number in range(gone + 1)]


def test_it_is_not_looked_for_without_end() -> None:
    file = File(LOOKS_MAX, 2 * LOOKS_MAX)
    with pytest.raises(FileDataLostError):
        list(present_chunks(file.content, file.chunks))
    assert len(file.read) == LOOKS_MAX


def test_a_file_that_was_not_replaced_has_lost_its_bytes() -> None:
    file = File(1, 1)
    content = file.content()
    with pytest.raises(FileDataLostError):
        list(present_chunks(lambda: content, file.chunks))
    assert file.read == [b"0"]


def test_what_was_begun_is_not_begun_again() -> None:
    def chunks(content: Content) -> Iterator[bytes]:
        yield content.inline
        raise FileDataLostError("gone")

    file = File(0, 2)
    found = present_chunks(file.content, chunks)
    assert next(found) == b"0"
    with pytest.raises(FileDataLostError):
        next(found)


def test_a_file_that_is_not_there_is_told_at_once_and_when_it_is_looked_for_again() -> None:
    def missing() -> Content:
        raise NoSuchPathError("deleted")

    with pytest.raises(NoSuchPathError):
        present_chunks(missing, File(0, 1).chunks)
    file = File(1, 1)
    looks = iter([file.content, missing])
    with pytest.raises(NoSuchPathError):
        list(present_chunks(lambda: next(looks)(), file.chunks))
    assert list(present_chunks(Content, lambda _content: [])) == []
