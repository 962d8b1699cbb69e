"""The words in which errors about rows and entries name what a user can change: options of Spark, or arguments of ``Log`` in Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """``of`` tells whose rows are counted, behind the number of a row. The others are clauses of advice."""

    of: str
    compress: str
    no_help: str
    too_wide_to_write: str
    too_wide_to_read: str
    read_around: str

    def row(self, number: int) -> str:
        return f"row {number}{self.of}"


OF_SPARK = Words(
    of=" of the task",
    compress='write with .option("compression", "zstd"), ',
    no_help="entrySize does not help",
    too_wide_to_write="maxBytesPerEntry is {limit:,}: reads would refuse it. Raise it for both",
    too_wide_to_read="maxBytesPerEntry is {limit:,}",
    read_around="startingOffsets and endingOffsets read what lies before and behind, the option ledgers its bytes",
)
OF_PYTHON = Words(
    of=" of the data",
    compress='write with compression="zstd", ',
    no_help="entry_size does not help",
    too_wide_to_write="reads take at most {limit:,}: divide it into several rows",
    too_wide_to_read="reads take at most {limit:,}",
    read_around="start and end of the read leave it out, client.open_ledger gives its bytes",
)
