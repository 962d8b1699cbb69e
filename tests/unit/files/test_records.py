"""The stored form of a file store, and what is made of damage."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import pytest

from bk_core.errors import FileStoreFormatError
from bk_core.protocol.files.content import Content, Extent
from bk_core.protocol.files.records import (
    CONTENT_MAX,
    RECORD_MAX,
    BaseBegin,
    BaseEnd,
    BaseNode,
    BasePart,
    Delete,
    Mkdirs,
    Put,
    Record,
    Rename,
    ReplaceAll,
    content_bytes,
    decode,
    encode,
    encode_content,
)

EXAMPLES: list[tuple[Record, str]] = [
    (Put("/a/b", Content(b"xyz"), 1000, 7, 1), "0101c557926200000000000003e80000000000000007000100042f612f62000000030000000078797a"),
    (
        Put("/a", Content(extents=(Extent(258, 3, 4, 5, 4),)), -1, 2),
        "010148aed0deffffffffffffffff0000000000000002000000022f610000000000000001"
        "000000000000010200000000000000030000000000000004000000000000000500000004",
    ),
    (Mkdirs("/ä", 1, 2, 1), "0102a2a65a8800000000000000010000000000000002000100032fc3a4"),
    (Rename("/a", "/bc", 1), "0103bc759a110000000000000001000200032f612f6263"),
    (Delete("/", 1), "0104db92cf05000000000000000100012f"),
    (ReplaceAll("/a", 1), "02053bb79a04000000000000000100022f61"),
    (BaseBegin(9, 5), "011043d1a20500000000000000090000000000000005"),
    (
        BasePart((BaseNode(1, "d", 2, 5, None), BaseNode(2, "f", 3, 6, Content(b"x")))),
        "01115ca2db00000000020000000000000001000000000000000200000000000000050101640000000000000002000000000000000300000000000000060001660000"
        "00010000000078",
    ),
    (BaseEnd(2, 258), "0112153a882d000000000000000200000102"),
]
MORE: list[Record] = [
    Put("/a", Content(), 0, 2),
    Put("/" + "a/" * 100 + "b", Content(b"\0" * 70_000), 2**62, 2**63, 100),
    Put("/a", Content(extents=tuple(Extent(n, 0, n, 10 * n + 1, 10) for n in range(50))), 0, 2),
    BasePart(()),
]


@pytest.mark.parametrize(("record", "stored"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_the_stored_form_byte_for_byte(record: Record, stored: str) -> None:
    """Changing one of these makes stores unreadable that exist."""
    assert encode(record).hex() == stored
    assert decode(bytes.fromhex(stored)) == record


@pytest.mark.parametrize("record", MORE, ids=lambda record: type(record).__name__)
def test_what_is_written_is_read(record: Record) -> None:
    assert decode(encode(record)) == record
    assert encode(decode(encode(record))) == encode(record)


@pytest.mark.parametrize("record", [record for record, _ in EXAMPLES], ids=lambda record: type(record).__name__)
def test_fs_3_a_record_with_a_byte_more_less_or_other_is_refused(record: Record) -> None:
    """FS-3."""
    stored = encode(record)
    damaged = [stored[:size] for size in range(len(stored))] + [stored + b"\0"]
    damaged += [stored[:at] + bytes([stored[at] ^ 1 << bit]) + stored[at + 1 :] for at in range(len(stored)) for bit in range(8)]
    for one in damaged:
        with pytest.raises(FileStoreFormatError):
            decode(one)


def sealed(stored: bytes) -> bytes:
    """With a checksum that fits: whoever wrote it meant it."""
    return stored[:2] + struct.pack(">I", crc32(stored[:2] + stored[6:])) + stored[6:]


@pytest.mark.parametrize("record", [record for record, _ in EXAMPLES], ids=lambda record: type(record).__name__)
def test_fs_3_whatever_a_foreign_writer_seals_is_a_record_or_refused(record: Record) -> None:
    """FS-3: no other error than ours, no memory for sizes that are merely told."""
    chance = random.Random(repr(record))
    stored = encode(record)
    damaged = [
        sealed(stored[:size] + b"\0" * extra) for size in range(6, len(stored) + 1) for extra in (0, 1) if size + extra != len(stored)
    ]
    for _ in range(2000):
        one = bytearray(stored)
        for _ in range(chance.randint(1, 3)):
            one[chance.randrange(6, len(one))] = chance.choice((0, 1, 47, 127, 128, 255))
        damaged.append(sealed(bytes(one)))
    for one in damaged:
        try:
            read = decode(bytes(one))
        except FileStoreFormatError:
            continue
        assert encode(read) == one, "what is read is what was written"


@pytest.mark.parametrize("stored", [b"", b"\x01", b"hello, this is no file store", b"\0" * 64])
def test_fs_3_other_bytes_are_refused(stored: bytes) -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError):
        decode(stored)


def test_fs_3_an_entry_that_somebody_else_wrote_is_told_without_words_of_python() -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError, match=r"the entry is no record of a store \(4 bytes\): somebody else wrote to this log$"):
        decode(b"abcd")


def test_fs_3_a_later_version_and_an_unknown_kind_say_so() -> None:
    """FS-3."""
    stored = encode(Delete("/a", 1))
    for version in (0, 2, 3):  # a kind of version 1 is never written with another one
        with pytest.raises(FileStoreFormatError, match=f"version {version} .*a later program wrote it"):
            decode(bytes([version]) + stored[1:])
    with pytest.raises(FileStoreFormatError, match="version 1 and kind 5 .* version 2"):
        decode(b"\x01" + encode(ReplaceAll("/a", 1))[1:])
    with pytest.raises(FileStoreFormatError, match="kind 99"):
        decode(sealed(b"\x01\x63" + stored[2:]))


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a/../b", "/" + "a" * 256, "/a\0"])
def test_fs_3_a_path_that_is_not_normal_is_damage(path: str) -> None:
    """FS-3."""
    renames = Rename(path, "/b", 0), Rename("/b", path, 0)
    for record in (Put(path, Content(), 0, 2), Mkdirs(path, 0, 2, 1), Delete(path, 0), ReplaceAll(path, 0), *renames):
        with pytest.raises(FileStoreFormatError):
            decode(encode(record))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/", "\0"])
def test_fs_3_a_node_needs_a_name(name: str) -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError):
        decode(encode(BasePart((BaseNode(1, name, 2, 0, None),))))


@pytest.mark.parametrize(
    "content",
    [
        Content(b"x", (Extent(1, 0, 0, 1, 1),)),
        Content(extents=(Extent(1, 1, 0, 1, 1),)),
        Content(extents=(Extent(1, 0, 0, 0, 1),)),
        Content(extents=(Extent(1, 0, 0, 1, 0),)),
        Content(extents=(Extent(1, 0, 1, 4, 4),)),
        Content(extents=(Extent(1, 0, 0, 5, 4),)),
        Content(extents=(Extent(2**63, 0, 0, 1, 1),)),
    ],
)
def test_fs_3_a_content_that_cannot_be_is_damage(content: Content) -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError):
        decode(encode(Put("/a", content, 0, 2)))


def test_a_record_has_room_for_the_largest_content_and_the_longest_path() -> None:
    path = "/" + "/".join(["a" * 249] * 32)
    content = Content(b"x" * (CONTENT_MAX - content_bytes(Content())))
    assert content_bytes(content) == CONTENT_MAX == len(encode_content(content))
    assert len(encode(Put(path, content, 0, 2))) < RECORD_MAX
    large = Content(extents=(Extent(1, 0, 0, 1, 1),) * 10)
    assert content_bytes(large) == len(encode_content(large))
