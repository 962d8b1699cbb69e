"""Bounds the size of a list, which is one value of the metadata store. Marks of queries are the part that is never sealed. Pure."""

from __future__ import annotations

import json

from bk_core.errors import LogListFullError
from bk_core.protocol.log.codec import encode_mark
from bk_core.protocol.log.ledger_list import LedgerList


def check_size(name: str, listed: LedgerList, size: int, size_max: int) -> None:
    """Raise LogListFullError, with the way out, for a list of ``size`` bytes that the store would not take (JAN-7)."""
    if size > size_max:
        raise LogListFullError(f"the list of log {name!r} would have {told(listed, size, size_max)}. Nothing was changed", log=name)


def is_large(size: int, size_max: int) -> bool:
    """Return True if the size deserves a warning while there is still time (JAN-7)."""
    return size > size_max // 2


def told(listed: LedgerList, size: int, size_max: int) -> str:
    marks = len(json.dumps({name: encode_mark(mark) for name, mark in listed.committed.items()}))
    columns = sum(map(len, {listed.properties.schema, *listed.schemas}))
    if columns > marks:
        return (
            f"{size:,} bytes of at most {size_max:,}, {columns:,} of them for its columns"
            f"{f', which changed {len(listed.schemas):,} times' if len(listed.schemas) > 1 else ''}. "
            "Use fewer columns, or nest them; several logs may have the parts of a wide table"
        )
    return (
        f"{size:,} bytes of at most {size_max:,}, {marks:,} of them for the marks of {len(listed.committed):,} queries and transactions. "
        "Drop marks of those that are gone, by id (bk log marks NAME --forget ID), by age (--forget-older-than 30d), or by "
        "themselves (bk log set NAME --committed-retention 30d)"
    )
