"""Files of entries: a header in JSON, blocks of entries with a checksum each, and an end with their number (README.md)."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import sub
from typing import Any, BinaryIO

from bk_core.errors import ExportFormatError
from bk_core.protocol import BytesLike
from bk_core.protocol.log.stored_json import loads

MAGIC = b"BKENTRY\x01"
FORMAT = 1
_U32 = struct.Struct(">I")
_BLOCK = struct.Struct(">IQQ")  # entries, id of the first, bytes of the payloads; at the end 0, all entries, all bytes
_HEADER_BYTES_MAX = 1 << 26
_BLOCK_ENTRIES_MAX = 1 << 24
_BLOCK_BYTES_MAX = 1 << 31
BLOCK_ENTRIES = 65_536
_SWAPPED = array("I", [1]).tobytes()[0] == 1  # this machine is little-endian, and the file is not


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries from ``first_entry_id`` on: payload i is ``values[offsets[i]:offsets[i + 1]]``, and ``offsets`` begin with 0."""

    first_entry_id: int
    values: BytesLike
    offsets: array[int]

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> array[int]:
        """The payload bytes of each entry."""
        return array("I", map(sub, self.offsets[1:], self.offsets[:-1]))


def entries_of(first_entry_id: int, values: BytesLike, offsets: BytesLike | array[int]) -> Entries:
    """Return the entries of a run, whose offsets may begin anywhere."""
    places = array("q", memoryview(offsets).cast("B").tobytes())
    start = places[0]
    if start:
        places = array("q", (place - start for place in places))
    return Entries(first_entry_id, memoryview(values)[start : start + places[-1]], places)


class EntryWriter:
    """Writes a file of entries to ``target``, which is open for writing bytes."""

    def __init__(self, target: BinaryIO, header: Mapping[str, Any]) -> None:
        self._target = target
        self.entries = self.bytes = 0
        text = json.dumps({"format": FORMAT, **header}, separators=(",", ":")).encode()
        target.write(b"".join((MAGIC, _U32.pack(len(text)), text, _U32.pack(zlib.crc32(text)))))

    def write(self, run: Entries) -> None:
        """Write consecutive entries, as one block or as some."""
        for start in range(0, run.count, BLOCK_ENTRIES):
            offsets = run.offsets[start : start + BLOCK_ENTRIES + 1]
            part = entries_of(run.first_entry_id + start, run.values, offsets)
            sizes = part.sizes
            if _SWAPPED:
                sizes.byteswap()
            head = _BLOCK.pack(part.count, part.first_entry_id, part.offsets[-1])
            check = zlib.crc32(part.values, zlib.crc32(sizes, zlib.crc32(head)))
            self._target.write(b"".join((head, sizes.tobytes(), part.values, _U32.pack(check))))
            self.entries += part.count
            self.bytes += part.offsets[-1]

    def finish(self) -> None:
        """Write the end, without which the file counts as cut off."""
        end = _BLOCK.pack(0, self.entries, self.bytes)
        self._target.write(end + _U32.pack(zlib.crc32(end)))


class EntryFile:
    """Reads a file of entries from ``source``, which is open for reading bytes. ``name`` is for messages.

    Raises ExportFormatError for what is no such file, is damaged or was cut off.
    """

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source = source
        self._name = name
        if source.read(len(MAGIC)) != MAGIC:
            raise self.wrong("is no file of entries: `bk ledger export` and `bk log export` write such files")
        size = self._number(_U32)[0]
        if size > _HEADER_BYTES_MAX:
            raise self.wrong(f"is damaged: its header would have {size:,} bytes")
        text = self._bytes(size)
        if zlib.crc32(text) != self._number(_U32)[0]:
            raise self.wrong("is damaged: the checksum of its header is wrong")
        try:
            header = loads(text)
        except ValueError:
            header = None
        if not isinstance(header, dict):
            raise self.wrong("is of another form: its header is no object of JSON")
        self.header: dict[str, Any] = header
        if self.header.get("format") != FORMAT:
            raise self.wrong(f"has format {self.header.get('format')!r}, and this program reads format {FORMAT}")

    def runs(self) -> Iterator[Entries]:
        """Yield the entries block by block, each after its checksum was found right."""
        entries = size = 0
        while True:
            head = self._bytes(_BLOCK.size)
            count, first, length = _BLOCK.unpack(head)
            if not count:
                self._check_end(head, (first, length), (entries, size))
                return
            if count > _BLOCK_ENTRIES_MAX or length > _BLOCK_BYTES_MAX:
                raise self.wrong(f"is damaged after entry {first}: a block would have {count:,} entries and {length:,} bytes")
            packed, values = self._bytes(4 * count), self._bytes(length)
            if zlib.crc32(values, zlib.crc32(packed, zlib.crc32(head))) != self._number(_U32)[0]:
                raise self.wrong(f"is damaged: the checksum of entries {first} to {first + count - 1} is wrong")
            sizes = array("I", packed)
            if _SWAPPED:
                sizes.byteswap()
            offsets = array("q", [0])
            total = 0
            for one in sizes:
                total += one
                offsets.append(total)
            if total != length:
                raise self.wrong(f"is damaged: the sizes of entries {first} to {first + count - 1} do not add up")
            yield Entries(first, values, offsets)
            entries, size = entries + count, size + length

    def _check_end(self, end: bytes, stated: tuple[int, int], found: tuple[int, int]) -> None:
        if zlib.crc32(end) != self._number(_U32)[0]:
            raise self.wrong("is damaged: the checksum of its end is wrong")
        if stated != found:
            raise self.wrong(f"is damaged: it says that it has {stated[0]:,} entries, and has {found[0]:,}")
        if self._source.read(1):
            raise self.wrong("is damaged: something comes after its end")

    def _number(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._bytes(form.size))

    def _bytes(self, size: int) -> bytes:
        data = self._source.read(size)
        if len(data) < size:
            raise self.wrong("is cut off: its end is missing. Export it again, or fetch the whole file")
        return data

    def wrong(self, what: str) -> ExportFormatError:
        """Return the error for a file that is damaged, or of another form; ``what`` goes on after its name."""
        return ExportFormatError(f"{self._name} {what}", path=self._name)
