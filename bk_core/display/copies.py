"""The tables of copies: those of one bookie, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bk_core.display.table import Table
from bk_core.display.words import counted, id_text, told_size

if TYPE_CHECKING:
    from bk_core.client.copies import Copy
    from bk_core.client.diff import Difference, ReplicaDiff


def state(copy: Copy) -> str:
    """Return the state of a copy in one word: good, corrupt, missing or unreadable."""
    if copy.digest_ok is not None:
        return "good" if copy.digest_ok else "corrupt"
    return "missing" if copy.status.name in ("NO_ENTRY", "NO_LEDGER") else "unreadable"


def places(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the places of the entries of ledgers, by the names that scripts get."""
    columns = ["#ledger", "#fragment", "entries", "#position", "bookie", "#copies", "#size"]
    return Table(columns, map(_place, rows))


def _place(row: Mapping[str, Any]) -> tuple[object, ...]:
    last = "" if row["lastEntryId"] is None else row["lastEntryId"]
    size = None if row["bytes"] is None else told_size(row["bytes"])
    return id_text(row["ledgerId"]), row["fragment"], f"{row['firstEntryId']}-{last}", row["position"], row["bookie"], row["entries"], size


def differences(diff: ReplicaDiff) -> Table:
    """Return the entries that differ; neighbours that differ alike are one row."""
    return Table(["entries", "#count", "what"], ([_span(one), one.count, told(one, diff.bookies)] for one in diff.differences))


def _span(one: Difference) -> str:
    return str(one.first) if one.count == 1 else f"{one.first}-{one.last}"


def told(one: Difference, bookies: tuple[str, str]) -> str:
    """Return a difference in words."""
    if one.what != "differs":
        return {"only in the first": f"only on {bookies[0]}", "only in the second": f"only on {bookies[1]}"}.get(one.what, "on neither")
    wrong = [bookie for bookie, good in zip(bookies, (one.first_digest_ok, one.second_digest_ok), strict=True) if not good]
    intact = "both are intact" if not wrong else "both are wrong" if len(wrong) > 1 else f"that of {wrong[0]} is wrong"
    return f"{', '.join(one.fields)} differ; {intact}" if len(one.fields) > 1 else f"{one.fields[0]} differs; {intact}"


def diff_notes(diff: ReplicaDiff) -> Iterator[str]:
    """Yield how much was compared, and the verdict."""
    if diff.differing > sum(one.count for one in diff.differences):
        yield "there are more differences than are shown"
    if diff.held_by_one:
        yield f"{counted(diff.held_by_one, 'entry', 'entries')} should be on one of the two alone, and were not compared"
    alike = counted(diff.same, "entry", "entries")
    yield f"ledger {diff.ledger_id}, {diff.bookies[0]} and {diff.bookies[1]}: {alike} alike, {diff.differing:,} not"


def diff_facts(diff: ReplicaDiff) -> dict[str, Any]:
    """Return a comparison by the names that scripts get (docs/site/pages/guides/looking.md has them)."""
    return {
        "ledger": diff.ledger_id,
        "bookies": list(diff.bookies),
        "first": diff.first,
        "last": diff.last,
        "same": diff.same,
        "differing": diff.differing,
        "heldByOne": diff.held_by_one,
        "differences": list(_facts(diff.differences)),
    }


def _facts(found: Iterable[Difference]) -> Iterator[dict[str, Any]]:
    for one in found:
        digests = [one.first_digest_ok, one.second_digest_ok]
        shape = {"first": one.first, "last": one.last, "count": one.count, "what": one.what}
        yield shape if one.what != "differs" else {**shape, "fields": list(one.fields), "digestOk": digests}
