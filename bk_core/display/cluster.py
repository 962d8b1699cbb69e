"""The tables of a whole cluster: findings of a doctor, probes of bookies, and what a cluster is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bk_core.display.ledgers import BOOKIE_STATES, WRITABLE, bookie_count_facts, bookie_counts
from bk_core.display.table import Table
from bk_core.display.words import counted, disk_size, host_port, told_age, told_duration, told_time, when

if TYPE_CHECKING:
    from bk_core.client.bench import Measured
    from bk_core.client.doctor.facts import BookieFacts, ClusterFacts
    from bk_core.client.doctor.findings import Diagnosis, Finding
    from bk_core.client.doctor.probe import BookieProbe
    from bk_core.client.doctor.watch import LogGrowth, Moment
    from bk_core.metadata.cookies import Cookie

_NAMED_MAX = 8
_PHASE_SHARES = (0.5, 0.95, 0.99, 0.999)


def findings(found: Iterable[Finding]) -> Table:
    """Return the findings of a doctor, one a line."""
    columns = ["severity", "finding", "what", "about", "what to do", "command"]
    return Table(columns, ((one.severity, one.code, one.what, about(one), one.advice, one.command or None) for one in found))


def finding_facts(finding: Finding) -> dict[str, Any]:
    """Return a finding by the names that scripts get."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "what": finding.what,
        "count": finding.count,
        "bookies": list(finding.bookies),
        "ledgers": list(finding.ledgers),
        "logs": list(finding.logs),
        "advice": finding.advice,
        "command": finding.command or None,
    }


def diagnosis_facts(found: Diagnosis) -> dict[str, Any]:
    """Return a look at a cluster but its findings, by the names that scripts get."""
    counts = found.ledgers
    ledgers = {"total": counts.total, "open": counts.open, "inRecovery": counts.in_recovery, "closed": counts.closed}
    return {
        "cluster": found.cluster,
        "good": found.is_good,
        "errors": found.count("error"),
        "warnings": found.count("warning"),
        "notes": found.count("note"),
        "bookies": bookie_count_facts(found.bookies.values()),
        "ledgers": {**ledgers, "unreadable": counts.unreadable},
        "logs": found.logs,
        "tookMs": int(found.took_s * 1000),
        "unchecked": list(found.unchecked),
    }


def about(finding: Finding) -> str | None:
    """Return the ledgers that a finding is about in words, None if it is about none. Bookies and logs stand in its sentence."""
    shown = finding.ledgers[:_NAMED_MAX]
    if not shown:
        return None
    more = finding.count - len(shown)
    names = ", ".join(map(str, shown))
    return f"{'ledger' if finding.count == 1 else 'ledgers'} {names}" + (f" and {more:,} more" if more > 0 else "")


def verdict(found: Diagnosis) -> str:
    """Return the result of a look at a cluster in one sentence."""
    states = list(found.bookies.values())
    recovering = found.ledgers.in_recovery
    ledgers = counted(found.ledgers.total, "ledger") + (f" ({recovering:,} in recovery)" if recovering else "")
    parts = (counted(len(states), "bookie"), ledgers, counted(found.logs, "log"))
    counts = [counted(found.count(severity), severity) for severity in ("error", "warning", "note") if found.count(severity)]
    return f"cluster {found.cluster}: {', '.join(parts)}: {', '.join(counts) or 'nothing wrong'}"


def diagnosis(found: Diagnosis) -> Iterator[Table | str]:
    """Yield a look at a cluster: its findings, and a line that sums it up."""
    if found.findings:
        yield findings(found.findings)
    for left in found.unchecked:
        yield f"not looked at: {left}"
    yield verdict(found)


def probes(found: Iterable[BookieProbe], states: Mapping[str, str]) -> Table:
    """Return probes of bookies with their times; narrow enough for 80 columns as long as all answer."""
    columns = ["bookie", "state", "#connect", "#v2 p50", "#v2 p99", "#v3 p50", "#v3 p99", "#used"]
    return Table(columns, (_probe_row(probe, states.get(probe.bookie, "")) for probe in found))


def _probe_row(probe: BookieProbe, state: str) -> list[object]:
    times = [told_time(probe.round_trip_ns(share, protocol)) for protocol in ("v2", "v3") for share in (0.5, 0.99)]
    told = state if probe.answers or probe.state == state else f"{state}, {probe.state}: {probe.problem}"
    return [probe.bookie, told, told_time(probe.connect_ns), *times, disk(probe)[0]]


def probe_facts(probe: BookieProbe | None) -> dict[str, Any] | None:
    """Return a probe by the names that scripts get; times in microseconds."""
    if probe is None:
        return None
    times = {
        name: {"p50Us": _us(probe.round_trip_ns(0.5, name)), "p99Us": _us(probe.round_trip_ns(0.99, name)), "requests": len(found)}
        for name, found in probe.round_trips_ns.items()
    }
    where = None if probe.address is None else host_port(*probe.address)
    answer = {"answer": probe.state, "problem": probe.problem or None, "address": where, "connectUs": _us(probe.connect_ns)}
    return {**answer, **times, "totalBytes": probe.total_bytes, "freeBytes": probe.free_bytes, "batchReads": probe.batch_reads}


def _us(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1000, 1)


def disk(probe: BookieProbe | None) -> tuple[str | None, str | None]:
    """Return the used share and the free bytes of a bookie's disks in words, None for what is not known."""
    used = None if probe is None else probe.used
    if probe is None or used is None or probe.free_bytes is None:
        return None, None
    return f"{used:.0%}", disk_size(probe.free_bytes)


def bookie(found: BookieFacts, now_ms: int) -> Table:
    """Return one bookie, a fact a line."""
    probe, held = found.probe, found.ledgers
    rows: list[tuple[str, object]] = [("state", found.state)]
    if probe is not None:
        used, free = disk(probe)
        rows.append(("answer", probe.state if probe.answers else f"{probe.state}: {probe.problem}"))
        rows.append(("address", None if probe.address is None else host_port(*probe.address)))
        rows.append(("connect", told_time(probe.connect_ns)))
        for protocol, times in probe.round_trips_ns.items():
            half, most = (told_time(probe.round_trip_ns(share, protocol)) for share in (0.5, 0.99))
            rows.append((f"round trip {protocol}", f"p50 {half}, p99 {most}, of {counted(len(times), 'request')}"))
        rows.append(("disks", None if used is None else f"{used} of {disk_size(probe.total_bytes or 0)} used, {free} free"))
        rows.append(("batch reads", probe.batch_reads))
    registered = found.registered_ms
    rows.append(("registered (UTC)", None if registered is None else f"{when(registered)} ({told_age(now_ms - registered)} ago)"))
    rows += [(f"endpoint {one.id}", f"{one.protocol} {host_port(one.host, one.port)}") for one in found.endpoints]
    rows += [(f"property {name}", value) for name, value in found.properties.items()]
    rows.append(("rack", found.rack or "no mapping"))
    if found.cookie is None:
        rows.append(("cookie", found.problem))
    else:
        rows += [(f"cookie {name}", value) for name, value in cookie(found.cookie).rows if name != "bookie"]
    if held is not None:
        first = f": {', '.join(map(str, held.first))}{' ...' if held.ledgers > len(held.first) else ''}" if held.first else ""
        rows.append(("ledgers", f"{counted(held.ledgers, 'ledger')} with {counted(held.fragments, 'fragment')} here{first}"))
        rows.append(("not closed", held.open))
    return Table(["bookie", found.bookie], rows)


def bookie_facts(found: BookieFacts) -> dict[str, Any]:
    """Return one bookie by the names that scripts get."""
    held = found.ledgers
    counts = None if held is None else {"ledgers": held.ledgers, "fragments": held.fragments, "open": held.open, "first": list(held.first)}
    return {
        "bookie": found.bookie,
        "state": found.state,
        "probe": probe_facts(found.probe),
        "endpoints": [{"id": one.id, "protocol": one.protocol, "host": one.host, "port": one.port} for one in found.endpoints],
        "properties": dict(found.properties),
        "registeredMs": found.registered_ms,
        "cookie": None if found.cookie is None else cookie_facts(found.cookie),
        "problem": found.problem or None,
        "rack": found.rack,
        "ledgers": counts,
    }


def cookie_facts(found: Cookie) -> dict[str, Any]:
    """Return a cookie but its bookie, by the names that scripts get."""
    index = None if found.index_dirs is None else list(found.index_dirs)
    dirs = {"journalDirs": list(found.journal_dirs), "ledgerDirs": list(found.ledger_dirs), "indexDirs": index}
    return {**dirs, "instanceId": found.instance_id}


def cookie(found: Cookie) -> Table:
    """Return a cookie, a fact a line."""
    rows: list[tuple[str, object]] = [("bookie", found.bookie_id)]
    rows += [("journal", one) for one in found.journal_dirs] + [("ledgers", one) for one in found.ledger_dirs]
    rows += [("index", one) for one in found.index_dirs or ()]
    return Table(["cookie", ""], [*rows, ("cluster", found.instance_id or "none, as in old clusters")])


def info_facts(found: ClusterFacts, uri: str) -> dict[str, Any]:
    """Return one cluster by the names that scripts get."""
    total, free = found.space
    return {
        "uri": uri,
        "cluster": found.cluster,
        "layout": found.layout,
        "logRoot": found.log_root,
        "ledgers": found.ledgers,
        "logs": found.logs,
        "bookies": {**bookie_count_facts(found.states.values()), "answering": found.answering},
        "totalBytes": total,
        "freeBytes": free,
        "sharedDisks": found.sharing,
        "autorecovery": {"on": found.autorecovery_on, "delaySeconds": found.recovery_delay_s, "auditor": found.auditor},
        "markedLedgers": found.marked,
        "marked": list(found.marked_first),
    }


def info(found: ClusterFacts, uri: str) -> Table:
    """Return one cluster, a fact a line."""
    counts = bookie_counts(found.states.values())
    total, free = found.space
    used = "no bookie reports its disks" if not total else f"{1 - free / total:.0%} of {disk_size(total)} used, {disk_size(free)} free"
    if found.sharing:
        used += (
            f"; {counted(found.sharing, 'bookie')} {'seems' if found.sharing == 1 else 'seem'} to share those of another on the same host"
        )
    delay = found.recovery_delay_s
    switch = ("on" if found.autorecovery_on else "switched off") + ("" if delay is None else f", after {told_duration(delay * 1000)}")
    rows: list[tuple[str, object]] = [
        ("cluster", found.cluster),
        ("layout", found.layout or "none that can be understood"),
        ("logs at", found.log_root),
        ("ledgers", found.ledgers),
        ("logs", found.logs),
        ("bookies", f"{len(found.states):,}: {counts}"),
        ("answering", f"{found.answering:,} of {counted(len(found.probes), 'registered one')}"),
        ("disks", used),
        ("auto-recovery", switch if found.auditor is not None else f"{switch}, and none runs"),
        ("auditor", found.auditor),
        ("marked ledgers", _marked(found)),
    ]
    return Table(["at", uri], rows)


def _marked(found: ClusterFacts) -> str:
    first = found.marked_first
    more = f" and {found.marked - len(first):,} more" if found.marked > len(first) else ""
    return f"{found.marked:,}" + (f": {', '.join(map(str, first))}{more}" if first else "")


def bench(found: Iterable[Measured], shares: Sequence[float]) -> Table:
    """Return the phases of a bench, with percentiles."""
    columns = ["phase", "#entries/s", "#payload/s", *(f"#p{share * 100:g}" for share in shares), "#max"]
    return Table(columns, (_phase_row(phase, shares) for phase in found))


def _phase_row(phase: Measured, shares: Sequence[float]) -> list[object]:
    times = [told_time(phase.times.percentile_ns(share)) for share in shares]
    worst = told_time(phase.times.worst_ns) if phase.times.count else None
    return [phase.name, round(phase.entries_per_second), disk_size(round(phase.bytes_per_second)), *times, worst]


def phase_facts(phase: Measured) -> dict[str, object]:
    """Return a phase of a bench by the names that scripts get; times in microseconds."""
    shares = {f"p{str(share)[2:].ljust(2, '0')}Us": phase.times.percentile_ns(share) for share in _PHASE_SHARES}
    times = {**shares, "maxUs": phase.times.worst_ns if phase.times.count else None}
    return {
        "phase": phase.name,
        "entries": phase.entries,
        "bytes": phase.bytes,
        "seconds": round(phase.seconds, 3),
        "entriesPerSecond": round(phase.entries_per_second, 1),
        "bytesPerSecond": round(phase.bytes_per_second),
        **{name: None if ns is None else round(ns / 1000, 1) for name, ns in times.items()},
    }


def moment(found: Moment) -> str:
    """Return a look at a cluster in one line."""
    states = list(found.states.values())
    quiet = sum(not probe.answers for probe in found.probes.values())
    counts = [f"{states.count(state):,} {state}" for state in BOOKIE_STATES if state == WRITABLE or state in states]
    if quiet:
        counts.append(f"{quiet:,} without an answer")
    times = [ns for probe in found.probes.values() if (ns := probe.round_trip_ns()) is not None]
    slowest = f", slowest {told_time(max(times))}" if times else ""
    ledgers = f"{counted(found.ledgers, 'ledger')} (+{found.created:,} created, {found.closed:,} of them closed, -{found.deleted:,})"
    rows, size = (sum(rates) for rates in zip((0.0, 0.0), *map(_rates, found.logs), strict=True))
    growth = f"{counted(found.logs_total, 'log')}, {rows:,.0f} rows/s, {disk_size(round(size))}/s"
    return f"bookies {', '.join(counts)}{slowest}; {ledgers}; {growth}"


def _rates(log: LogGrowth) -> tuple[float, float]:
    return log.rows_per_second or 0.0, log.bytes_per_second or 0.0


def moment_facts(found: Moment) -> dict[str, Any]:
    """Return a look at a cluster by the names that scripts get."""
    bookies = [{"bookie": one, "state": state, **(probe_facts(found.probes.get(one)) or {})} for one, state in found.states.items()]
    logs = [
        {
            "log": log.name,
            "rows": log.rows,
            "bytes": log.bytes,
            "rowsPerSecond": log.rows_per_second,
            "bytesPerSecond": log.bytes_per_second,
            "writer": None if log.writer is None else log.writer.told,
            "writerState": None if log.writer is None else log.writer.state,
        }
        for log in found.logs
    ]
    counts = {"ledgers": found.ledgers, "created": found.created, "closed": found.closed, "deleted": found.deleted}
    return {"atMs": found.at_ms, "cluster": found.cluster, "bookies": bookies, **counts, "logs": logs, "logsTotal": found.logs_total}


def top_bookies(found: Moment, most: int) -> Table:
    """Return the bookies at one look, those with trouble first, at most ``most``."""
    ranked = sorted(found.states, key=lambda bookie: (_is_well(found, bookie), bookie))
    return Table(["bookie", "state", "answer", "#v2", "#v3", "#used", "#free"], [_top_bookie(found, bookie) for bookie in ranked[:most]])


def _is_well(found: Moment, bookie: str) -> bool:
    probe = found.probes.get(bookie)
    return found.states[bookie] == WRITABLE and probe is not None and probe.answers


def _top_bookie(found: Moment, bookie: str) -> list[object]:
    probe = found.probes.get(bookie)
    times = [None if probe is None else told_time(probe.round_trip_ns(0.5, protocol)) for protocol in ("v2", "v3")]
    return [bookie, found.states[bookie], None if probe is None else probe.state, *times, *disk(probe)]


def top_logs(found: Moment, most: int) -> Table:
    """Return the logs at one look, the fastest first, at most ``most``. What was trimmed counts as written."""
    columns = ["log", "#rows written", "#bytes written", "#rows/s", "#bytes/s", "writer"]
    return Table(columns, [_top_log(log) for log in found.logs[:most]])


def _top_log(log: LogGrowth) -> list[object]:
    rows = None if log.rows_per_second is None else f"{log.rows_per_second:,.0f}"
    size = None if log.bytes_per_second is None else disk_size(round(log.bytes_per_second))
    writer = None if log.writer is None else f"{log.writer.state}: {log.writer.host or 'not named'} {log.writer.pid or ''}".strip()
    return [log.name, log.rows, disk_size(log.bytes), rows, size, writer]
