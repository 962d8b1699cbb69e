"""The extension as it was built: what the linker and the compiler were told is in it."""

from __future__ import annotations

import importlib.util
import re
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.apache import COPY_DEPENDENCIES
from bk_core.errors import DigestError
from bk_core.kernels import _native, pure

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
DT_STRTAB, DT_STRSZ, DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 5, 10, 24, 30, 0x6FFFFFFB
EXECUTABLE, BIND_NOW, NOW = 1, 8, 1


class Elf:
    """As much of a 64-bit little-endian ELF file as is asked for here."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        begin, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
        self.segments = [struct.unpack_from("<IIQQQQQQ", data, begin + size * i) for i in range(count)]
        self.dynamic = dict(self._dynamic())

    def flags(self, kind: int) -> int | None:
        return next((int(segment[1]) for segment in self.segments if segment[0] == kind), None)

    def names(self) -> set[bytes]:
        """Return the names of symbols and libraries that the loader looks up."""
        begin = self._place(self.dynamic[DT_STRTAB])
        return set(self.data[begin : begin + self.dynamic[DT_STRSZ]].split(b"\0"))

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        for kind, _, begin, _, _, size, _, _ in self.segments:
            if kind == PT_DYNAMIC:
                yield from struct.iter_unpack("<qQ", self.data[begin : begin + size])

    def _place(self, address: int) -> int:
        for kind, _, begin, virtual, _, size, _, _ in self.segments:
            if kind == PT_LOAD and virtual <= address < virtual + size:
                return int(begin + address - virtual)
        raise AssertionError(f"nothing is loaded at {address:#x}")


ROOT = Path(__file__).resolve().parents[2]
KEY = bytes(range(20))


@pytest.fixture(scope="module")
def elf() -> Elf:
    spec = importlib.util.find_spec("bk_core.kernels._native")
    assert spec is not None and spec.origin is not None
    data = Path(spec.origin).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        pytest.skip("this machine's extensions are no 64-bit little-endian ELF files")
    return Elf(data)


def test_what_the_loader_writes_is_read_only_afterwards(elf: Elf) -> None:
    assert elf.flags(PT_GNU_RELRO) is not None
    now = elf.dynamic.get(DT_FLAGS, 0) & BIND_NOW or elf.dynamic.get(DT_FLAGS_1, 0) & NOW or DT_BIND_NOW in elf.dynamic
    assert now, f"symbols are bound late: {elf.dynamic}"


def test_the_stack_holds_no_code_and_is_watched(elf: Elf) -> None:
    flags = elf.flags(PT_GNU_STACK)
    assert flags is not None and not flags & EXECUTABLE
    assert b"__stack_chk_fail" in elf.names()


def test_copies_are_fortified_unless_a_sanitizer_looks_at_them(elf: Elf) -> None:
    names = elf.names()
    assert any(name.endswith(b"_chk") for name in names) or any(name.startswith(b"__asan_") for name in names)


@pytest.mark.parametrize("kernels", [_native, pure], ids=["native", "pure"])
def test_every_byte_of_an_hmac_counts(kernels: Any) -> None:
    frames, _ = kernels.frame_adds(b"payload", array("q", [0, 7]), 3, 0, -1, 0, 2, KEY, KEY, 0)
    body = bytearray(frames[28:])
    sized = len(body).to_bytes(4, "big")
    kernels.unpack_entries(sized + body, 0, 3, 2, KEY)
    for at in range(32, 52):
        for bit in range(8):
            body[at] ^= 1 << bit
            with pytest.raises(DigestError):
                kernels.unpack_entries(sized + body, 0, 3, 2, KEY)
            body[at] ^= 1 << bit


def test_digests_are_compared_in_constant_time() -> None:
    """A comparison that ends at the first wrong byte tells by its time how many were right."""
    source = (ROOT / "native" / "entries.c").read_text()
    compared = source.split("same_digest(", 1)[1].split("\n}\n", 1)[0]
    assert "memcmp(" not in compared and "volatile" in compared
    assert "hmac.compare_digest(_digest(" in (ROOT / "bk_core" / "kernels" / "pure.py").read_text()


def test_the_plugin_that_fetches_jars_is_pinned() -> None:
    assert re.fullmatch(r"org\.apache\.maven\.plugins:maven-dependency-plugin:[0-9.]+:copy-dependencies", COPY_DEPENDENCIES)
    unpinned = "dependency:" + "copy-dependencies"
    files = [path for folder in ("bk_core", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if f'"{unpinned}' in path.read_text()] == []
