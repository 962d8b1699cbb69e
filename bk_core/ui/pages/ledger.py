"""The page of one ledger: its metadata, the bookies of its fragments, and some of its entries with each replica; and that of one entry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape

from bk_core.client.inspect import FoundLedger, found_ledgers
from bk_core.display.ledgers import bookie_states
from bk_core.display.words import counted, id_text, preview, safe
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.log.identity import LOG_KEY
from bk_core.ui.answers import Answer
from bk_core.ui.entries import HEAD_MAX, Replica, SeenEntry, Stretch, read_stretch, replicas_of, window_of
from bk_core.ui.layout import Page, World, age, amount, bookie_link, log_link, moment, no_such, place, shown, state_badge
from bk_core.ui.markup import Child, Markup, badge, empty, facts, joined, link, section, table, tag
from bk_core.ui.pages.events import event_rows
from bk_core.ui.pages.ledgers import number
from bk_core.ui.pictures import fragments_picture, legend, replica_map

FRAGMENTS_SHOWN = 50
CUSTOM_SHOWN = 100
EVENTS_SHOWN = 10
LOOKED_S = 5.0  # so old may the entries be
_HEX_ROW = 16


def page(world: World, ledger_id: int, query: Mapping[str, str]) -> Page:
    """Return the page of a ledger."""
    client = world.client
    answer: Answer[tuple[FoundLedger | None]] = world.answers.get(
        ("ledger", ledger_id), lambda: (next(found_ledgers(client, [ledger_id]), None),), fresh_s=1.5
    )
    title = f"Ledger {ledger_id}"
    if answer.value is None:
        return Page(title, shown(answer, lambda _: None, what="its metadata"), "/ledgers", refreshes=True)
    found = answer.value[0]
    if found is None:
        return no_such(f"Ledger {ledger_id} does not exist. It was deleted, or never made.", "/ledgers")
    metadata = found.metadata
    if metadata is None:
        return Page(title, tag("p", f"{found.problem}", class_="notice bad"), "/ledgers")
    first = number(query.get("first", ""))
    stretch = _stretch(world, ledger_id, metadata, first)
    end = stretch.value.end if stretch.value is not None else metadata.last_entry_id if metadata.state.name == "CLOSED" else None
    about = shown(answer, lambda _: _facts(world, found, metadata, end), what="its metadata")
    parts = [
        section("Metadata", about, name="metadata"),
        _fragments(world, metadata, end),
        _entries(world, ledger_id, metadata, stretch),
        _custom(metadata),
    ]
    events = world.watcher.events.newest(EVENTS_SHOWN, ledger=ledger_id)
    if events:
        parts.append(section("What happened to it", event_rows(events, world.now_ms), name="events"))
    return Page(title, joined(parts), "/ledgers", refreshes=metadata.state.name != "CLOSED")


def _facts(world: World, found: FoundLedger, metadata: LedgerMetadata, end: int | None) -> Markup:
    is_closed = metadata.state.name == "CLOSED"
    log = metadata.custom.get(LOG_KEY)
    protected = {True: "yes", False: "no", None: "not known: the metadata stores none"}[metadata.has_password]
    if is_closed or end is None:
        last = id_text(metadata.last_entry_id) if is_closed else None
    else:
        last = f"{end} confirmed so far" if end >= 0 else "none is confirmed yet"
    pairs: list[tuple[str, Child]] = [
        ("state", state_badge(metadata.state.name)),
        ("E / Qw / Qa", f"{metadata.ensemble_size} / {metadata.write_quorum_size} / {metadata.ack_quorum_size}"),
        ("last entry", last),
        ("length", None if not is_closed else _length(metadata.length)),
        ("with copies", amount(found.stored_bytes)),
        ("digest", metadata.digest_type.name if metadata.has_digest else "not stored"),
        ("password", protected),
        ("format", metadata.format_version),
        ("created (UTC)", [moment(found.created_ms), tag("span", f"  {age(found.created_ms, world.now_ms) or ''}", class_="soft")]),
    ]
    if metadata.guaranteed:
        pairs.append(("write quorum", "guaranteed" + (", sealed" if metadata.sealed else "")))
    if log is not None:
        pairs.insert(0, ("log", log_link(log.decode("utf-8", "replace"))))
    return facts(pairs)


def _length(count: int) -> Child:
    return [amount(count), tag("span", f"  {count:,} bytes", class_="soft") if count >= 1000 else None]


def _fragments(world: World, metadata: LedgerMetadata, end: int | None) -> Markup:
    sight = world.watcher.sight
    states = {} if sight is None else bookie_states(sight.bookies.writable, sight.bookies.readonly, sight.cookies)
    newest = metadata.fragments[-FRAGMENTS_SHOWN:]
    rows: list[list[Child]] = [
        [id_text(one.first_entry_id), [tag("span", bookie_link(bookie), " ") for bookie in one.ensemble]] for one in reversed(newest)
    ]
    left_out = len(metadata.fragments) - len(newest)
    note = tag("p", f"{left_out:,} earlier fragments are not listed.", class_="soft") if left_out else None
    return section(
        f"Fragments ({len(metadata.fragments):,})",
        fragments_picture(metadata, end, states),
        table(["#first entry", "ensemble"], rows, caption="Fragments"),
        note,
        name="fragments",
    )


def _custom(metadata: LedgerMetadata) -> Markup:
    if not metadata.custom:
        return section("Custom metadata", empty("It has none."), name="custom")
    rows: list[list[Child]] = [
        [tag("span", key, class_="id"), len(value), tag("code", preview(value))] for key, value in sorted(metadata.custom.items())
    ]
    return section("Custom metadata", table(["name", "#bytes", "value"], rows[:CUSTOM_SHOWN], caption="Custom metadata"), name="custom")


# --- entries -------------------------------------------------------------------------------------------------------------


def _stretch(world: World, ledger_id: int, metadata: LedgerMetadata, first: int | None) -> Answer[Stretch]:
    ask = partial(read_stretch, world.client, ledger_id, world.password, first, window_of(metadata))
    return world.answers.get(("entries", ledger_id, first, metadata.state), ask, fresh_s=LOOKED_S)


def _entries(world: World, ledger_id: int, metadata: LedgerMetadata, stretch: Answer[Stretch]) -> Markup:
    return section(
        "Entries, replica by replica",
        shown(stretch, partial(_rows, world, ledger_id, metadata), what="its entries"),
        name="entries",
        more=link(f"/ledgers/{ledger_id}/xray", "x-ray of all entries"),
    )


def _rows(world: World, ledger_id: int, metadata: LedgerMetadata, stretch: Stretch) -> Markup:
    if not stretch.entries:
        none = "It has no entry." if metadata.state.name == "CLOSED" else "None of its entries is confirmed yet."
        beyond = f"Entry {stretch.first} lies beyond its end, which is entry {stretch.end}."
        return empty(none if stretch.end < 0 else beyond)
    ids = [one.entry_id for one in stretch.entries]
    ask = partial(replicas_of, world.client, ledger_id, metadata, ids[0], ids[-1])
    replicas = world.answers.get(("replicas", ledger_id, ids[0], ids[-1]), ask, fresh_s=LOOKED_S)
    ensembles = [metadata.fragment_of(entry_id).ensemble for entry_id in ids]
    dots = {} if replicas.value is None else replica_map(ensembles, replicas.value)
    waiting = tag("span", "asked ..." if replicas.problem is None else "not known", class_="soft", data_pending=replicas.problem is None)
    rows: list[list[Child]] = [
        [
            link(f"/ledgers/{ledger_id}/entries/{one.entry_id}", str(one.entry_id), class_="id"),
            dots.get(one.entry_id, waiting),
            None if one.problem else one.size,
            tag("code", one.shown) if one.problem is None else tag("span", one.problem, class_="bad-word"),
        ]
        for one in stretch.entries
    ]
    return joined([
        table(["#entry", "~replicas", "#bytes", "payload"], rows, caption="Entries", keys=[str(one) for one in ids]),
        legend(),
        _lost(replicas),
        _steps(ledger_id, metadata, stretch),
    ])  # fmt: skip


def _lost(replicas: Answer[dict[int, tuple[Replica, ...]]]) -> Markup | None:
    """Name the bookies that lack something of these entries."""
    lacking: dict[tuple[str, str], int] = {}
    for found in (replicas.value or {}).values():
        for one in found:
            if one.state != "ok":
                lacking[one.bookie, one.told] = lacking.get((one.bookie, one.told), 0) + 1
    if not lacking:
        return None
    items = [
        tag("li", tag("span", bookie, class_="id"), f": {told}, {count} of these entries")
        for (bookie, told), count in sorted(lacking.items())
    ]
    return tag("ul", items, class_="notice watch")


def _steps(ledger_id: int, metadata: LedgerMetadata, stretch: Stretch) -> Markup:
    count = window_of(metadata)
    here = f"/ledgers/{ledger_id}"
    before = max(0, stretch.first - count)
    after = stretch.first + count
    last = max(0, stretch.end - count + 1)
    earlier = (
        link(place(here, {"first": before}), "\u2190 earlier", rel="prev", data_step="b")
        if stretch.first > 0
        else tag("span", "\u2190 earlier", class_="off")
    )
    later = (
        link(place(here, {"first": after}), "later \u2192", rel="next", data_step="n")
        if after <= stretch.end
        else tag("span", "later \u2192", class_="off")
    )
    told = tag(
        "span",
        f"{stretch.first} to {stretch.entries[-1].entry_id} of 0 to {stretch.end}  ",
        link(place(here, {"first": last}), "last"),
    )
    form = tag(
        "form",
        tag("label", "Entry ", tag("input", name="first", inputmode="numeric", pattern="[0-9]*", size=8, autocomplete="off")),
        action=here,
        class_="jump",
    )
    return joined([tag("p", earlier, told, later, class_="steps"), form])


def entry_page(world: World, ledger_id: int, entry_id: int) -> Page:
    """Return the page of one entry: its copies on the bookies of its write set, and the beginning of its payload as text and as bytes."""
    ask = partial(read_stretch, world.client, ledger_id, world.password, entry_id, 1)
    answer = world.answers.get(("entry", ledger_id, entry_id), ask, fresh_s=LOOKED_S)
    back = tag("p", link(place(f"/ledgers/{ledger_id}", {"first": entry_id}), f"\u2190 ledger {ledger_id} at entry {entry_id}"))
    body = shown(answer, lambda stretch: _payload(stretch), what="the entry")
    parts = [back, _copies(world, ledger_id, entry_id, answer.value), section("Payload", body, name="payload")]
    return Page(f"Entry {entry_id} of ledger {ledger_id}", joined(parts), "/ledgers")


def _copies(world: World, ledger_id: int, entry_id: int, stretch: Stretch | None) -> Markup | None:
    """Return what each bookie of the write set has of an entry; nothing for one beyond the end."""
    if stretch is None or not stretch.entries:
        return None

    def ask() -> tuple[Replica, ...]:
        metadata = world.client.ledger_metadata(ledger_id)
        return replicas_of(world.client, ledger_id, metadata, entry_id, entry_id)[entry_id]

    answer = world.answers.get(("copies", ledger_id, entry_id), ask, fresh_s=LOOKED_S)
    return section("Copies", shown(answer, _copy_rows, what="its copies"), name="copies")


def _copy_rows(replicas: tuple[Replica, ...]) -> Markup:
    kinds = {"ok": "good", "silent": "watch"}
    rows: list[list[Child]] = [[bookie_link(one.bookie), badge(one.state, kinds.get(one.state, "bad")), one.told] for one in replicas]
    return table(["bookie", "copy", "what it says"], rows, caption="Copies")


def _payload(stretch: Stretch) -> Markup:
    if not stretch.entries:
        return empty(f"There is no such entry: the ledger ends at entry {stretch.end}.")
    entry: SeenEntry = stretch.entries[0]
    if entry.problem is not None:
        return tag("p", entry.problem, class_="notice bad")
    cut = f" The first {HEAD_MAX:,} are shown." if entry.size > len(entry.head) else ""
    said = tag("p", f"{counted(entry.size, 'byte')}.{cut}")
    words = entry.head.decode("utf-8", "replace")
    return joined(
        [
            said,
            tag("h3", "As text"),
            tag("pre", Markup(_escaped(words)), class_="text"),
            tag("h3", "As bytes"),
            tag("pre", hexadecimal(entry.head)),
        ]
    )


def _escaped(words: str) -> str:
    """Return words as HTML: lines stay lines, and whatever else is no text is spelled out."""
    return escape(safe(words))


def hexadecimal(data: bytes) -> Markup:
    """Return bytes in rows of sixteen, with what of them is printable ASCII."""
    rows = []
    for at in range(0, len(data), _HEX_ROW):
        part = data[at : at + _HEX_ROW]
        ascii_part = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        rows.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_ROW}} {ascii_part}")
    return Markup(escape("\n".join(rows)))
