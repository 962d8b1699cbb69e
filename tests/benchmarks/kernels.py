"""The kernels alone, in one thread: crc32c against two packages and memcpy, framing and unpacking against memcpy.

A sample is the fastest of a hundred slices of 2 ms in which a function is called again and again on one buffer. What is counted is payload
bytes; the cost of a call from Python counts, and is most of it at 100 B.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from types import ModuleType

from bk_core import kernels
from bk_core.bookie.apache import cache_directory
from bk_core.protocol.ledger.metadata import DigestType
from tests.benchmarks.measure import Comparison, Reach, Sample, interleave
from tests.benchmarks.report import Report
from tests.benchmarks.settings import Settings

PACKAGES = ("google-crc32c==1.9.0", "crc32c==2.9.post0")
SIZES = (100, 1024, 4096, 65536, 1 << 20)
SLICE_S = 0.002
SLICES = 100
BATCH_BYTES = 1 << 20  # of entries framed or unpacked in one call
_MASTER_KEY = bytes(20)


class KernelsPart:
    """``crc`` and ``frames``."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self._report, self._settings = report, settings

    def run(self, detail: str) -> None:
        quick = self._settings.quick
        if detail == "crc":
            google, other = packages()
            for size in (100, 4096, 1 << 20) if quick else SIZES:
                self._report.say(f"crc32c of {size:,} bytes")
                self._report.add(compare_crc(size, google, other, self._settings))
        else:
            for size in (1024,) if quick else (100, 1024, 10240, 102400):
                self._report.say(f"framing and unpacking entries of {size:,} bytes")
                self._report.add(compare_framing(size, self._settings))

    def close(self) -> None:
        """It has no processes."""


def packages() -> tuple[ModuleType, ModuleType]:
    """google_crc32c and crc32c, installed once by pip beside the environment, never into it. RuntimeError with pip's words."""
    place = cache_directory() / "python" / "-".join(PACKAGES).replace("==", "-")
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix="resolving-") as work:
            command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--target"]
            done = subprocess.run([*command, f"{work}/lib", *PACKAGES], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"pip could not install {' '.join(PACKAGES)}:\n{done.stderr[-2000:]}")
            shutil.move(f"{work}/lib", place)
    return _import_from(place, "google_crc32c"), _import_from(place, "crc32c")


def _import_from(place: Path, name: str) -> ModuleType:
    sys.path.insert(0, str(place))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(place))


def timed(function: Callable[[], object], size: int) -> Sample:
    """The fastest of some slices of calls, ``size`` bytes a call: whatever else runs on the machine can only slow one down."""
    count = 1
    while (took := _slice(function, count)) < SLICE_S / 4:
        count *= 4
    count = max(1, int(count * SLICE_S / took))
    took = min(_slice(function, count) for _ in range(SLICES))
    return Sample(took, float(count * size), count * size)


def _slice(function: Callable[[], object], count: int) -> float:
    """Seconds."""
    start = time.perf_counter()
    for _ in repeat(None, count):
        function()
    return time.perf_counter() - start


def copier(data: bytes) -> Callable[[], object]:
    """memcpy into a buffer that exists, as cheap as Python can call it."""
    target = memoryview(bytearray(len(data)))
    return partial(target.__setitem__, slice(None), data)


def compare_crc(size: int, google: ModuleType, other: ModuleType, settings: Settings) -> Comparison:
    data = bytes(i * 31 & 255 for i in range(size))
    assert kernels.crc32c(data) == google.value(data) == other.crc32c(data)
    calls: dict[str, Callable[[], object]] = {
        "bk_core": partial(kernels.crc32c, data),
        "google-crc32c": partial(google.value, data),
        "crc32c": partial(other.crc32c, data),
        "memcpy": copier(data),
    }
    samples = interleave({name: partial(timed, call, size) for name, call in calls.items()}, settings.rounds)
    limit = 1.5 if size < 1024 else 1.0
    reaches = [Reach("bk_core", limit, against=name) for name in ("google-crc32c", "crc32c")] if size < 1024 or size >= 4096 else []
    note = f"one thread, ours by {kernels.CRC32C_KERNEL}; {', '.join(PACKAGES)}"
    return Comparison(f"crc32c of {size:,} bytes", "bytes", samples, "google-crc32c", note, reaches, "kernels")


def compare_framing(size: int, settings: Settings) -> Comparison:
    """Framing of a run (ids, lengths, digests, keys) and its way back: both copy the payload once, as memcpy does."""
    count = max(1, BATCH_BYTES // size)
    payloads = bytes(i * 31 & 255 for i in range(size)) * count
    offsets = array("q", range(0, (count + 1) * size, size)).tobytes()
    digest = int(DigestType.CRC32C)
    frame = partial(kernels.frame_adds, payloads, offsets, 7, 0, -1, 0, digest, b"", _MASTER_KEY, 0)
    frames, starts = map(bytes, frame())
    edges = memoryview(starts).cast("q")
    items = b"".join(
        (edges[i + 1] - edges[i] - 28).to_bytes(4, "big") + frames[edges[i] + 28 : edges[i + 1]] for i in range(count)
    )  # u32 length | body, as a batch read brings them
    unpack = partial(kernels.unpack_entries, items, 0, 7, digest, b"")
    calls: dict[str, Callable[[], object]] = {"frame_adds": frame, "unpack_entries": unpack, "memcpy": copier(payloads)}
    total = count * size
    samples = interleave({name: partial(timed, call, total) for name, call in calls.items()}, settings.rounds)
    note = f"{count} entries in one call, CRC32C"
    return Comparison(f"framing and unpacking entries of {size:,} bytes", "bytes", samples, "memcpy", note, (), "kernels")
