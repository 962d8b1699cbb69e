"""The stored forms: the ledger list (one line of JSON with a format number) and the chunks of its history. FORMAT.md has every field.

Unknown fields of the list and of its properties are carried from read to write, so that an older program leaves alone what a newer one
has added. The same list always gives the same bytes (META-12 repeats byte-identically).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from bk_core.errors import MetadataFormatError
from bk_core.protocol.log.history import Chunk
from bk_core.protocol.log.ledger_list import ADOPTED_MAX, LedgerList
from bk_core.protocol.log.provenance import BatchSpan, decode_spans, encode_spans, within
from bk_core.protocol.log.sealing import ref_to
from bk_core.protocol.log.segments import HistoryRef, LogProperties, Mark, Segment, unchecked_properties
from bk_core.protocol.log.stored_json import loads

FORMAT_VERSION = 3
_WITHOUT_CLUSTER = 2
CHUNK_FORMAT_VERSION = 1
_READABLE = (1, 2, 3)
_FIELDS = (
    "format",
    "cluster",
    "logId",
    "properties",
    "trimmed",
    "history",
    "dropped",
    "segments",
    "committed",
    "condemned",
    "released",
    "opened",
    "schemas",
    "adopted",
    "batches",
    "repairs",
)
_OPTIONAL_PROPERTIES = {
    "retentionMs": "retention_ms",
    "retentionBytes": "retention_bytes",
    "guaranteed": "guaranteed_write_quorum",
    "committedRetentionMs": "committed_retention_ms",
}
_PROPERTY_FIELDS = (
    *("entryFormat", "schema", "ensembleSize", "writeQuorumSize", "ackQuorumSize", "digestType"),
    *_OPTIONAL_PROPERTIES,
)
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def encode(listed: LedgerList) -> bytes:
    """Encode a list in format 3, which older programs refuse, because they would ignore ``cluster``; a list without one gets format 2."""
    value = {
        **({"format": FORMAT_VERSION, "cluster": listed.cluster} if listed.cluster else {"format": _WITHOUT_CLUSTER}),
        "logId": listed.log_id,
        "properties": _properties(listed.properties),
        "trimmed": [listed.trimmed_seq, listed.trimmed_rows, listed.trimmed_bytes, listed.head_rows, listed.head_bytes],
        "history": [encode_ref(ref) for ref in listed.history],
        "dropped": [encode_ref(ref) for ref in listed.dropped],
        "segments": [encode_segment(segment) for segment in listed.segments],
        "committed": {name: encode_mark(mark) for name, mark in sorted(listed.committed.items())},
        "condemned": list(listed.condemned),
        "released": list(listed.released),
        "opened": [encode_ref(ref) for ref in listed.opened],
        "schemas": list(listed.schemas),
        **_adoption(listed),
        **({"batches": encode_spans(listed.batches)} if listed.batches else {}),
        **({"repairs": listed.repairs} if listed.repairs else {}),
        **dict(sorted(listed.extra.items())),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _adoption(listed: LedgerList) -> dict[str, Any]:
    """Return the fields of an adoption; only a list that a person has adopted has some."""
    if not (listed.adopted or listed.adopted_from):
        return {}
    return {"adopted": {"from": list(listed.adopted_from), "unnamed": encode_ids(listed.adopted)}}


def _properties(p: LogProperties) -> dict[str, Any]:
    """The schema is not repeated here: it is the last of ``schemas``."""
    fixed = {
        "entryFormat": p.entry_format,
        "ensembleSize": p.ensemble_size,
        "writeQuorumSize": p.write_quorum_size,
        "ackQuorumSize": p.ack_quorum_size,
        "digestType": p.digest_type,
    }
    optional = {name: getattr(p, attribute) for name, attribute in _OPTIONAL_PROPERTIES.items() if getattr(p, attribute)}
    return {**fixed, **optional, **dict(sorted(p.extra.items()))}


def decode(data: bytes) -> LedgerList:
    """Decode a list. Raises MetadataFormatError for bytes that are no ledger list or come from a newer, incompatible format."""
    try:
        value = loads(data.decode())
        stored_format = value["format"]
        if stored_format not in _READABLE:
            raise MetadataFormatError(f"ledger list of format {stored_format!r}; this program reads formats 1 to {FORMAT_VERSION}")
        if stored_format == FORMAT_VERSION and not (isinstance(value["cluster"], str) and value["cluster"]):
            raise MetadataFormatError(f"ledger list of format {FORMAT_VERSION} that does not name its cluster")
        return _decode_v1(value) if stored_format == 1 else _decode_v2(value)
    except _MALFORMED as error:
        raise MetadataFormatError(f"not a ledger list: {type(error).__name__}: {error}") from error


def _decode_v2(value: Mapping[str, Any]) -> LedgerList:
    trimmed_seq, trimmed_rows, trimmed_bytes, head_rows, head_bytes = (int(n) for n in value["trimmed"])
    history = tuple(decode_ref(row) for row in value["history"])
    schemas = tuple(str(schema) for schema in value["schemas"])
    first_seq = history[-1].after_seq if history else trimmed_seq
    adoption = value.get("adopted", {})
    return LedgerList(
        log_id=str(value["logId"]),
        properties=_decode_properties(value["properties"], schemas[-1] if schemas else ""),
        segments=tuple(decode_segment(row, first_seq + i) for i, row in enumerate(value["segments"])),
        trimmed_seq=trimmed_seq,
        trimmed_rows=trimmed_rows,
        trimmed_bytes=trimmed_bytes,
        committed=MappingProxyType({str(name): decode_mark(row) for name, row in value["committed"].items()}),
        condemned=tuple(int(i) for i in value["condemned"]),
        extra=_unknown(value, _FIELDS),
        history=history,
        head_rows=head_rows,
        head_bytes=head_bytes,
        dropped=tuple(decode_ref(row) for row in value["dropped"]),
        released=tuple(int(i) for i in value["released"]),
        opened=tuple(decode_ref(row) for row in value["opened"]),
        schemas=schemas,
        cluster=str(value.get("cluster", "")),
        adopted=decode_ids(adoption.get("unnamed", [])),
        adopted_from=tuple(str(cluster) for cluster in adoption.get("from", [])),
        batches=decode_spans(value.get("batches", {})),
        repairs=int(value.get("repairs", 0)),
    )


def _decode_v1(value: Mapping[str, Any]) -> LedgerList:
    """Decode format 1. It has no history, six numbers per segment, and a batch id as mark. Rows per entry are known only where they are
    one."""
    trimmed_seq, trimmed_rows, trimmed_bytes = (int(n) for n in value["trimmed"])
    return LedgerList(
        log_id=str(value["logId"]),
        properties=_decode_properties(value["properties"], str(value["properties"]["schema"])),
        segments=tuple(_decode_v1_segment(row, trimmed_seq + i) for i, row in enumerate(value["segments"])),
        trimmed_seq=trimmed_seq,
        trimmed_rows=trimmed_rows,
        trimmed_bytes=trimmed_bytes,
        committed=MappingProxyType({str(name): Mark(int(batch_id)) for name, batch_id in value["committed"].items()}),
        condemned=tuple(int(i) for i in value["condemned"]),
        extra=_unknown(value, _FIELDS),
    )


def _decode_v1_segment(row: Any, seq: int) -> Segment:
    ledger_id, first, last, rows, size, at_ms = row
    one_each = last is None or rows == last - first + 1
    end = None if last is None else int(last)
    segment = Segment(seq, int(ledger_id), int(first), end, int(rows), int(size), int(at_ms), int(one_each))
    _check_range(segment)
    return segment


def _decode_properties(value: Mapping[str, Any], schema: str) -> LogProperties:
    def optional(name: str) -> int | None:
        bound = value.get(name)
        if bound is not None and not (type(bound) is int and bound > 0):
            raise ValueError(f"{name} is {bound!r}, by which everything would be trimmed")
        return bound

    return unchecked_properties(
        entry_format=str(value["entryFormat"]),  # what another program stored is checked where it is used
        schema=schema,
        ensemble_size=int(value["ensembleSize"]),
        write_quorum_size=int(value["writeQuorumSize"]),
        ack_quorum_size=int(value["ackQuorumSize"]),
        digest_type=str(value["digestType"]),
        retention_ms=optional("retentionMs"),
        retention_bytes=optional("retentionBytes"),
        guaranteed_write_quorum=bool(value.get("guaranteed", False)),
        committed_retention_ms=optional("committedRetentionMs"),
        extra=_unknown(value, _PROPERTY_FIELDS),
    )


def _unknown(value: Mapping[str, Any], known: tuple[str, ...]) -> Mapping[str, Any]:
    return MappingProxyType({name: item for name, item in value.items() if name not in known})


def encode_ids(ids: Collection[int]) -> list[list[int]]:
    """Return spans ``[first, last]`` of consecutive ids, both inclusive, ascending."""
    spans: list[list[int]] = []
    for one in sorted(ids):
        if spans and spans[-1][1] == one - 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return spans


def decode_ids(spans: Any) -> frozenset[int]:
    """Return the ids of spans. Raises ValueError for bad spans, or for more ids than a list may have."""
    pairs = [(int(first), int(last)) for first, last in spans]
    if any(not 0 <= first <= last for first, last in pairs) or sum(last - first + 1 for first, last in pairs) > ADOPTED_MAX:
        raise ValueError(f"spans of ledger ids are {pairs[:3]!r}")
    return frozenset(i for first, last in pairs for i in range(first, last + 1))


# --- marks, rows of segments and references --------------------------------------------------------------------------------


def encode_mark(mark: Mark) -> list[int]:
    """Return the batch id and the time, then rows and bytes if they are known. Earlier programs read the first two and drop the others."""
    sizes = [] if mark.rows is None or mark.bytes is None else [mark.rows, mark.bytes]
    return [mark.batch_id, mark.at_ms, *sizes]


def decode_mark(row: Any) -> Mark:
    batch_id, at_ms, *sizes = (int(n) for n in row)
    return Mark(batch_id, at_ms, *sizes[:2]) if len(sizes) > 1 else Mark(batch_id, at_ms)


def encode_segment(s: Segment) -> list[int | None]:
    """Return six numbers, then rows per entry and the schema id unless they are 1 and 0."""
    row = [s.ledger_id, s.first_entry_id, s.last_entry_id, s.rows, s.bytes, s.committed_at_ms]
    if s.schema_id:
        return [*row, s.rows_per_entry, s.schema_id]
    return row if s.rows_per_entry == 1 else [*row, s.rows_per_entry]


def decode_segment(row: Any, seq: int) -> Segment:
    numbers = [None if n is None else int(n) for n in row]
    if not 6 <= len(numbers) <= 8 or any(n is None for i, n in enumerate(numbers) if i != 2):
        raise ValueError(f"segment {seq} is {row!r}")
    segment = Segment(seq, *numbers)  # type: ignore[arg-type]
    _check_range(segment)
    return segment


def _check_range(segment: Segment) -> None:
    """Raise ValueError for a segment that is no stretch of a ledger: nothing of it would be read, and nobody be told."""
    if segment.ledger_id < 0 or segment.first_entry_id < 0 or segment.entries < 0:
        raise ValueError(
            f"segment {segment.seq} is entries {segment.first_entry_id} to {segment.last_entry_id} of ledger {segment.ledger_id}"
        )


def encode_ref(ref: HistoryRef) -> list[int]:
    head = [ref.level, ref.ledger_id, ref.entry_id, ref.first_seq, ref.count, ref.rows, ref.bytes]
    return [*head, ref.min_ledger, ref.max_ledger, ref.first_ms, ref.last_ms]


def decode_ref(row: Any) -> HistoryRef:
    return HistoryRef(*(int(n) for n in row))


# --- chunks of the history --------------------------------------------------------------------------------------------


def encode_chunk(log_id: str, items: Chunk, batches: Sequence[BatchSpan] = ()) -> bytes:
    """Return the one entry of a history ledger: the segments, or the references, that a reference of the list stands for. Segments take
    their spans of ``batches`` with them."""
    ref = ref_to(items, 0)
    value = {"format": CHUNK_FORMAT_VERSION, "logId": log_id, "level": ref.level, "firstSeq": ref.first_seq, "count": ref.count}
    rows = [encode_segment(item) if isinstance(item, Segment) else encode_ref(item) for item in items]
    spans = within(batches, ref.first_seq, ref.after_seq) if not ref.level else ()
    named = {"batches": encode_spans(spans)} if spans else {}
    return json.dumps({**value, "items": rows, **named}, separators=(",", ":")).encode()


def decode_batches(data: bytes) -> tuple[BatchSpan, ...]:
    """Return the spans of a chunk that ``decode_chunk`` takes; none for one of an earlier program. Raises MetadataFormatError."""
    try:
        return decode_spans(loads(data.decode()).get("batches", {}))
    except _MALFORMED as error:
        raise MetadataFormatError(f"not a chunk of history: {type(error).__name__}: {error}") from error


def decode_chunk(data: bytes, log_id: str, ref: HistoryRef) -> Chunk:
    """Decode a chunk. Raises MetadataFormatError unless the entry is of a known format and is exactly what ``ref`` of this log stands for:
    its level, numbers, sums and spans."""
    try:
        value = loads(data.decode())
        if value["format"] != CHUNK_FORMAT_VERSION:
            message = f"a chunk of format {value['format']!r}; this program reads format {CHUNK_FORMAT_VERSION}"
            raise MetadataFormatError(message)
        if value["logId"] != log_id:
            raise MetadataFormatError(f"a chunk of another log ({value['logId']!r} instead of {log_id!r})")
        chunk = _chunk_items(value)
        found = ref_to(chunk, ref.ledger_id, ref.entry_id)
        stated = (int(value["level"]), int(value["firstSeq"]), int(value["count"]))
    except _MALFORMED as error:
        raise MetadataFormatError(f"not a chunk of history: {type(error).__name__}: {error}") from error
    if found != ref or stated != (ref.level, ref.first_seq, ref.count):
        raise MetadataFormatError(f"a chunk that is not the one referred to: {found} instead of {ref}")
    return chunk


def _chunk_items(value: Mapping[str, Any]) -> Chunk:
    if value["level"] == 0:
        return tuple(decode_segment(row, int(value["firstSeq"]) + i) for i, row in enumerate(value["items"]))
    refs = tuple(decode_ref(row) for row in value["items"])
    if any(before.after_seq != ref.first_seq or before.level != ref.level for before, ref in pairwise(refs)):
        raise ValueError("its references leave a gap")
    return refs
