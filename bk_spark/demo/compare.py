"""Checks row by row and column by column that exactly what was written was read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Comparison:
    """``doubled`` counts surplus copies, ``foreign`` rows that were never written, ``changed`` cells per column."""

    expected: int
    found: int
    missing: int
    doubled: int
    foreign: int
    changed: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return self.expected == self.found and not (self.missing or self.doubled or self.foreign or any(self.changed.values()))


def compare(source: pa.Table, found: pa.Table) -> Comparison:
    """Compare by row number ``n``. ``source.n`` must be 0..rows-1 in order; ``found`` may come in any order.

    Raises pyarrow.ArrowInvalid if a column of ``found`` cannot have the source's type, KeyError if one is absent.
    """
    found = found.select(source.column_names).cast(source.schema).sort_by("n")
    numbers = found["n"].to_numpy(zero_copy_only=False).astype(np.float64)  # a null n becomes NaN: foreign, never equal to a row
    ours = (numbers >= 0) & (numbers < source.num_rows)
    first = np.ones(len(numbers), dtype=bool)
    first[1:] = numbers[1:] != numbers[:-1]
    kept = np.flatnonzero(ours & first)
    here = found.take(pa.array(kept))
    there = source.take(pa.array(numbers[kept].astype(np.int64)))
    return Comparison(
        expected=source.num_rows,
        found=found.num_rows,
        missing=source.num_rows - len(kept),
        doubled=int((ours & ~first).sum()),
        foreign=int((~ours).sum()),
        changed={name: _cells_that_differ(there[name], here[name]) for name in source.column_names},
    )


def _cells_that_differ(left: pa.ChunkedArray, right: pa.ChunkedArray) -> int:
    """Two nulls agree; a null and a value do not."""
    same = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    agree = pc.sum(pc.or_(same, both_null)).as_py() or 0
    return len(left) - int(agree)
