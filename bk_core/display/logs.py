"""The tables of logs: their facts, segments, problems, and what a collection did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bk_core.display.table import Table
from bk_core.display.words import counted, id_text, preview, told_duration, told_size, when

if TYPE_CHECKING:
    from bk_core.client.log.check import LogCheck, LogProblem
    from bk_core.client.log.info import LogInfo
    from bk_core.client.log.janitor import GcReport
    from bk_core.client.log.reader import LogEntries
    from bk_core.protocol.log.segments import LogProperties, Segment
    from bk_core.protocol.log.view import LogView

NO_PYARROW = 'pyarrow is needed to show its columns: pip install "bk-spark[arrow]"'
"""The line in place of the columns of a log."""
_ENTRIES_SHOWN = 10
_NAMES = {  # what people read in place of the names that scripts get
    "logId": "id",
    "entryFormat": "entry format",
    "firstSeq": "first segment",
    "condemned": "condemned ledgers",
    "storedBytes": "with copies",
    "quorums": "E/Qw/Qa",
    "digestType": "digest type",
    "guaranteed": "guaranteed write quorum",
    "retentionMs": "retention",
    "retentionBytes": "retention bytes",
    "committedRetentionMs": "committed retention",
    "inHistory": "segments in history",
}
_FORMS: Mapping[str, Callable[[int], str]] = {
    "firstSeq": str,
    "retentionMs": told_duration,
    "retentionBytes": told_size,
    "committedRetentionMs": told_duration,
}


def summary(name: str, view: LogView) -> dict[str, Any]:
    """Return the facts of a log that go into a line, by the names that scripts get."""
    listed = view.listed
    return {
        "log": name,
        "logId": view.log_id,
        "entryFormat": view.properties.entry_format,
        "firstSeq": listed.trimmed_seq,
        "segments": view.next_seq - listed.trimmed_seq,
        "live": bool(view.live_segments),
        "rows": listed.total_rows - listed.trimmed_rows,
        "bytes": listed.total_bytes - listed.trimmed_bytes,
        "condemned": len(listed.condemned),
    }


def property_values(properties: LogProperties) -> dict[str, Any]:
    """Return the properties of a log but its entry format, by the names that scripts get."""
    return {
        "schema": properties.schema,
        "quorums": [properties.ensemble_size, properties.write_quorum_size, properties.ack_quorum_size],
        "digestType": properties.digest_type,
        "guaranteed": properties.guaranteed_write_quorum,
        "retentionMs": properties.retention_ms,
        "retentionBytes": properties.retention_bytes,
        "committedRetentionMs": properties.committed_retention_ms,
    }


def segment_values(segment: Segment) -> dict[str, Any]:
    """Return a segment by the names that scripts get."""
    return {
        "seq": segment.seq,
        "ledger": segment.ledger_id,
        "firstEntryId": segment.first_entry_id,
        "lastEntryId": segment.last_entry_id,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "committedAtMs": segment.committed_at_ms,
        "writtenOff": segment.written_off,
    }


def facts(name: str, shown: Mapping[str, Any]) -> Table:
    """Return one log, a fact a line, from the values that scripts get. Durations and sizes are as the options of ``bk log set`` take them.
    Of a schema the size is shown, because ``columns`` shows the rest."""
    rows: list[tuple[str, object]] = []
    for key, value in shown.items():
        if key in _FORMS:
            value = "none" if value is None else _FORMS[key](value)
        elif key == "schema":
            value = f"{len(value):,} characters of Arrow" if value else None
        elif isinstance(value, list):
            value = ("/" if key == "quorums" else ", ").join(map(str, value)) or None
        if key != "schema" or value is not None:
            rows.append((_NAMES.get(key, key), value))
    return Table(["log", name], rows)


def columns(found: Iterable[tuple[str, str]]) -> Table:
    """Return the columns of a log with their types, in the words of DDL."""
    return Table(["column", "type"], found)


def properties(shown: LogProperties) -> Table:
    """Return the properties of a log alone."""
    return facts("", {"entryFormat": shown.entry_format, **property_values(shown)})


def info(shown: LogInfo) -> Table:
    """Return a log at one moment."""
    end, first = shown.end, shown.first
    values = {
        "logId": shown.log_id,
        "entryFormat": shown.properties.entry_format,
        "segments": f"{shown.segments:,}, of which {shown.live:,} live: its rows are not counted yet" if shown.live else shown.segments,
        "rows": shown.rows,
        "bytes": shown.bytes,
        "first": f"segment {first.seq}, entry {first.entry}, row {first.row}",
        "end": f"segment {end.seq}, entry {end.entry}, row {end.row}",
        "committed (UTC)": None if shown.committed_at is None else shown.committed_at.strftime("%Y-%m-%d %H:%M:%S"),
        "writer": None if shown.writer is None else f"{shown.writer.told} ({shown.writer.state})",
    }
    return facts(shown.name, {**values, **property_values(shown.properties), "schema": None})


def info_parts(shown: LogInfo) -> list[Table | str]:
    """Return a log at one moment with its columns, or with the reason where there is no pyarrow to show them."""
    found = shown.columns
    if found is None:
        return [info(shown), NO_PYARROW]
    return [info(shown), columns(found)] if found else [info(shown)]


def segments(found: Iterable[Segment]) -> Table:
    """Return segments of a log; one that is being written has no last entry yet, one that was written off none any more."""
    columns = ["#seq", "#ledger", "#first entry", "#last entry", "#rows", "#bytes", "committed (UTC)"]
    return Table(columns, map(_segment_row, found))


def _segment_row(segment: Segment) -> list[object]:
    last = "live" if segment.live else "written off" if segment.written_off else id_text(segment.last_entry_id)
    size = (id_text(segment.first_entry_id), last, segment.rows, segment.bytes)
    return [str(segment.seq), str(segment.ledger_id), *size, when(segment.committed_at_ms)]


def problems(found: Iterable[tuple[str, LogProblem]]) -> Table:
    """Return problems of logs, each with the name of its log."""
    return Table(["log", "problem", "#ledger", "#first seq", "#last seq", "#rows", "#bytes", "what"], (_problem_row(*one) for one in found))


def _problem_row(name: str, problem: LogProblem) -> list[object]:
    span = (str(problem.first_seq), str(problem.last_seq), problem.rows, problem.bytes)
    return [name, problem.kind, str(problem.ledger_id), *span, problem.what]


def problem_facts(name: str, problem: LogProblem) -> dict[str, Any]:
    """Return a problem of a log by the names that scripts get."""
    span = {"firstSeq": problem.first_seq, "lastSeq": problem.last_seq, "rows": problem.rows, "bytes": problem.bytes}
    return {"log": name, "problem": problem.kind, "ledger": problem.ledger_id, **span, "what": problem.what}


def check(report: LogCheck) -> list[Table | str]:
    """Return a check of one log: its problems, and a line that sums it up."""
    found = [(report.log, problem) for problem in report.problems]
    told = f"{counted(report.segments, 'segment')} in {counted(report.ledgers, 'ledger')} checked"
    end = f"log {report.log}: {told}: {counted(len(found), 'problem') if found else 'good'}"
    return [*([problems(found)] if found else []), end]


def entries(run: LogEntries) -> Table:
    """Return the first entries of a run, with the beginning of their payloads."""
    rows = []
    for index in range(min(run.count, _ENTRIES_SHOWN)):
        payload = bytes(run.values[run.offsets[index] : run.offsets[index + 1]])
        rows.append((f"{run.segment.seq}:{run.first_entry_id + index}", len(payload), preview(payload)))
    return Table(["position", "#bytes", "payload"], rows)


def collected(report: GcReport) -> Table:
    """Return the ledgers that a collection dealt with, and what became of each."""
    rows: list[tuple[object, ...]] = [(str(ledger_id), "deleted", None) for ledger_id in report.deleted]
    rows += [(str(ledger_id), "closed", None) for ledger_id in report.closed]
    rows += [(str(ledger_id), "could not be cleaned up", why) for ledger_id, why in report.failed]
    rows += [(str(ledger_id), "left alone", why) for ledger_id, why in report.foreign]
    rows += [(str(ledger_id), "intent forgotten", "the ledger does not exist") for ledger_id in report.forgotten]
    return Table(["#ledger", "what", "why"], rows)
