"""The tables of ledgers, their entries and bookies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bk_core.display.table import Table
from bk_core.display.words import id_text, preview, told_age, when

if TYPE_CHECKING:
    from bk_core.client.inspect import FoundLedger
    from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata
    from bk_core.protocol.ledger.run import EntryRun

WRITABLE, READ_ONLY, DOWN = BOOKIE_STATES = ("writable", "read-only", "down")
"""The states of bookies; a bookie that is down has a cookie and is not registered."""
_ENTRIES_SHOWN = 10
_FACTS = {  # what people read in place of the names that scripts get
    "ensembleSize": "ensemble size",
    "writeQuorumSize": "write quorum size",
    "ackQuorumSize": "ack quorum size",
    "lastEntryId": "last entry",
    "storedBytes": "with copies",
    "digestType": "digest type",
    "hasPassword": "password",
    "formatVersion": "format",
}

UNREADABLE = "UNREADABLE"
"""The state that is shown of a ledger whose metadata cannot be understood."""


def summary(metadata: LedgerMetadata, **known: Any) -> dict[str, Any]:
    """Return the facts of a ledger, by the names that scripts get. Its end is None until it is CLOSED. ``known`` are facts that metadata
    has not, or has not always: ``storedBytes`` and ``createdMs``."""
    closed = metadata.state.name == "CLOSED"
    return {
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "fragments": len(metadata.fragments),
        "lastEntryId": metadata.last_entry_id if closed else None,
        "length": metadata.length if closed else None,
        "createdMs": metadata.ctime_ms,
        **known,
    }


def found_summary(found: FoundLedger) -> dict[str, Any]:
    """Return the facts of a ledger that exists, with its id; of one whose metadata cannot be understood the problem instead."""
    if found.metadata is None:
        return {"ledger": found.ledger_id, "state": UNREADABLE, "createdMs": found.created_ms, "problem": str(found.problem)}
    return {"ledger": found.ledger_id, **summary(found.metadata, **known(found))}


def known(found: FoundLedger) -> dict[str, Any]:
    """Return the facts of a ledger that its metadata has not, or has not always, for ``summary``, ``details`` and ``ledger``."""
    return {"storedBytes": found.stored_bytes, "createdMs": found.created_ms}


def details(metadata: LedgerMetadata, **known: Any) -> dict[str, Any]:
    """Return all that metadata tells but the password, by the names that scripts get; ``known`` is as for ``summary``."""
    return {
        **summary(metadata, **known),
        "digestType": metadata.digest_type.name if metadata.has_digest else None,
        "hasPassword": metadata.has_password,
        "formatVersion": metadata.format_version,
        "custom": {key: preview(value) for key, value in metadata.custom.items()},
        "fragments": [{"firstEntryId": one.first_entry_id, "ensemble": list(one.ensemble)} for one in metadata.fragments],
    }


def ledgers(summaries: Iterable[Mapping[str, Any]], now_ms: int) -> Table:
    """Return the ledgers of a cluster at a time, from their summaries with their id as ``ledger``."""
    columns = ["#ledger", "state", "E/Qw/Qa", "#fragments", "#last entry", "#length", "#with copies", "created (UTC)", "#age"]
    return Table(columns, (_ledger_row(facts, now_ms) for facts in summaries))


def _ledger_row(facts: Mapping[str, Any], now_ms: int) -> list[object]:
    quorums: str | None = None
    size: list[object] = [None] * 4
    if facts["state"] != UNREADABLE:
        quorums = f"{facts['ensembleSize']}/{facts['writeQuorumSize']}/{facts['ackQuorumSize']}"
        size = [facts["fragments"], id_text(facts["lastEntryId"]), facts["length"], facts["storedBytes"]]
    return [str(facts["ledger"]), facts["state"], quorums, *size, *_created(facts["createdMs"], now_ms)]


def _created(created_ms: int | None, now_ms: int) -> tuple[str | None, str | None]:
    return when(created_ms), None if created_ms is None else told_age(now_ms - created_ms)


def ledger(metadata: LedgerMetadata, ledger_id: int | None = None, now_ms: int | None = None, **known: Any) -> Table:
    """Return one ledger, a fact a line, with its age if ``now_ms`` is given. Metadata itself does not tell the id; ``known`` is as for
    ``summary``."""
    shown = details(metadata, **known)
    told = {**shown, "lastEntryId": id_text(shown["lastEntryId"])}
    if shown["hasPassword"] is None:
        told["hasPassword"] = "not known: the metadata stores none"
    facts = [(_FACTS.get(key, key), value) for key, value in told.items() if key not in ("fragments", "custom", "createdMs")]
    facts.append(("created (UTC)", when(shown["createdMs"])))
    if now_ms is not None:
        facts.append(("age", _created(shown["createdMs"], now_ms)[1]))
    facts += [(f"custom {key}", value) for key, value in shown["custom"].items()]
    return Table(["ledger metadata", "value"] if ledger_id is None else ["ledger", str(ledger_id)], facts)


def fragments(found: Iterable[Fragment]) -> Table:
    """Return the fragments of a ledger with their bookies."""
    return Table(["#first entry", "ensemble"], ((id_text(one.first_entry_id), "  ".join(one.ensemble)) for one in found))


def entries(run: EntryRun) -> Table:
    """Return the first entries of a run, with the beginning of their payloads."""
    rows = []
    for index in range(min(run.count, _ENTRIES_SHOWN)):
        payload = bytes(run.values[run.offsets[index] : run.offsets[index + 1]])
        rows.append((str(run.first_entry_id + index * run.step), len(payload), preview(payload)))
    return Table(["#entry", "#bytes", "payload"], rows)


def named_ledgers(ids: Sequence[int]) -> str:
    """Return ``ledger 7``, ``ledgers 7, 9``, or ``nothing``."""
    return f"{'ledger' if len(ids) == 1 else 'ledgers'} {', '.join(map(str, ids))}" if ids else "nothing"


def bookie_states(writable: Iterable[str], readonly: Iterable[str], cookies: Iterable[str] = ()) -> dict[str, str]:
    """Return the state of each bookie by its id, in the order of ids. ``cookies`` name all that were ever there: those that are not
    registered are down."""
    states = dict.fromkeys(cookies, DOWN) | dict.fromkeys(readonly, READ_ONLY) | dict.fromkeys(writable, WRITABLE)
    return dict(sorted(states.items()))


def bookie_counts(states: Collection[str]) -> str:
    """Return how many of these bookies are in each state, in words."""
    return ", ".join(f"{list(states).count(state):,} {state}" for state in BOOKIE_STATES)


def bookie_count_facts(states: Collection[str]) -> dict[str, int]:
    """Return how many of these bookies are in each state, by the names that scripts get."""
    found = list(states)
    names = zip(("writable", "readOnly", "down"), BOOKIE_STATES, strict=True)
    return {"total": len(found), **{name: found.count(state) for name, state in names}}


def bookies(states: Mapping[str, str], addresses: Mapping[str, str | None] | None = None) -> Table:
    """Return bookies with their state, and their address where it is known."""
    if addresses is None:
        return Table(["bookie", "state"], states.items())
    return Table(["bookie", "state", "address"], ((bookie, state, addresses.get(bookie)) for bookie, state in states.items()))
