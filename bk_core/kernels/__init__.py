"""The one door to the kernels: work over buffers of many entries, in C where the extension can be loaded, else in Python.

``BK_CORE_KERNELS=native`` or ``=pure`` forces the choice, and then a failure is an ImportError. Without it the extension is taken if it
loads; if not (a zip on ``--py-files`` cannot carry one) the twin in Python is taken and one warning says so, because it is a thousand
times slower. ``IMPLEMENTATION`` is "native" or "pure"; ``CRC32C_KERNEL`` names the CRC code in use. pure.py documents the functions.
"""

from __future__ import annotations

import logging
import os

_choice = os.environ.get("BK_CORE_KERNELS", "")
if _choice not in ("", "native", "pure"):
    raise ImportError(f"BK_CORE_KERNELS must be native, pure or not set, not {_choice!r}")


def _may_fall_back(reason: ImportError) -> bool:
    """Return True if the kernels in Python may take the place of the extension; warn once if they do."""
    if _choice == "native":
        return False
    logging.getLogger(__name__).warning("the native kernels cannot be loaded, the slow ones in Python are used: %s%s", reason, _zip_hint())
    return True


def _zip_hint() -> str:
    """Return advice for users who put a zip or a wheel on the path, because Python imports no extension from an archive."""
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    if archive is None:
        return ""
    advice = "install the wheel there, or ship a packed environment (bk_spark/README.md, Deploying)"
    return f"; bk_core comes from an archive, which no extension is imported from ({archive}): {advice}"


IMPLEMENTATION = "pure"
if _choice == "pure":
    from bk_core.kernels.pure import (
        CRC32C_KERNEL,
        crc32c,
        entry_bits,
        frame_add_responses,
        frame_adds,
        frame_adds_v3,
        frame_read_responses,
        frame_reads,
        frame_reads_v3,
        interleave,
        measure_run,
        new_block,
        scan_frames,
        scan_requests,
        scan_responses,
        scan_responses_v3,
        select_frames,
        skip_frames,
        take_bodies,
        unpack_entries,
        unpack_part,
        v3_read_frames,
    )
else:
    try:
        from bk_core.kernels._native import (
            CRC32C_KERNEL,
            crc32c,
            entry_bits,
            frame_add_responses,
            frame_adds,
            frame_adds_v3,
            frame_read_responses,
            frame_reads,
            frame_reads_v3,
            interleave,
            measure_run,
            new_block,
            scan_frames,
            scan_requests,
            scan_responses,
            scan_responses_v3,
            select_frames,
            skip_frames,
            take_bodies,
            unpack_entries,
            unpack_part,
            v3_read_frames,
        )

        IMPLEMENTATION = "native"
    except ImportError as failure:
        if not _may_fall_back(failure):
            raise ImportError(f"BK_CORE_KERNELS=native, but the native kernels cannot be loaded: {failure}{_zip_hint()}") from failure
        from bk_core.kernels.pure import (
            CRC32C_KERNEL,
            crc32c,
            entry_bits,
            frame_add_responses,
            frame_adds,
            frame_adds_v3,
            frame_read_responses,
            frame_reads,
            frame_reads_v3,
            interleave,
            measure_run,
            new_block,
            scan_frames,
            scan_requests,
            scan_responses,
            scan_responses_v3,
            select_frames,
            skip_frames,
            take_bodies,
            unpack_entries,
            unpack_part,
            v3_read_frames,
        )

__all__ = [
    "CRC32C_KERNEL",
    "IMPLEMENTATION",
    "crc32c",
    "entry_bits",
    "frame_add_responses",
    "frame_adds",
    "frame_adds_v3",
    "frame_read_responses",
    "frame_reads",
    "frame_reads_v3",
    "interleave",
    "measure_run",
    "new_block",
    "scan_frames",
    "scan_requests",
    "scan_responses",
    "scan_responses_v3",
    "select_frames",
    "skip_frames",
    "take_bodies",
    "unpack_entries",
    "unpack_part",
    "v3_read_frames",
]
