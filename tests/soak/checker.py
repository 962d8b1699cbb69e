"""Judge of a history: the invariants of replication-protocol.md 13.1 and 10.5 as far as a client can see them. Pure.

``check`` takes operations (history.py) and returns violations; an empty list is a pass. Each rule is one small function over all that is
known of one ledger or one log. What a history cannot show (copies on bookies, fences, every metadata version) is left to the simulator.

Real time counts: operation a comes before operation b only if a was answered before b was asked for. Everything else may have happened in
either order, and an operation without an answer may have taken effect or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.soak.history import Op, split

BESIDE_JAVA = "14.1 item 4"
NEGATIVE = frozenset({"BK-NO-ENTRY", "BK-BOOKIE-NO-LEDGER"})
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Violation:
    """``rule`` is an id of replication-protocol.md; ``where`` names the ledger or the log."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.where}: {self.message}"


def check(ops: Iterable[Op]) -> list[Violation]:
    """Every violation of the history, ledgers first."""
    ledgers, logs = views_of(ops)
    found: list[Violation] = []
    for ledger in ledgers.values():
        for ledger_rule in LEDGER_RULES:
            found += (Violation(rule, f"ledger {ledger.number}", message) for rule, message in ledger_rule(ledger))
    for log in logs.values():
        for log_rule in LOG_RULES:
            found += (Violation(rule, f"log {log.name}", message) for rule, message in log_rule(log))
    return found


def lost(ops: Iterable[Op]) -> list[tuple[int, int]]:
    """(ledger, entry) of everything that was acknowledged and cannot be read at the end."""
    return [(ledger.number, entry) for ledger in views_of(ops)[0].values() for entry in ledger.lost()]


# --- what is known -----------------------------------------------------------------------------------------------------


@dataclass
class LedgerView:
    """All operations of one ledger, by kind, in the order in which they were asked for. ``gone``: actors that were killed."""

    number: int
    gone: frozenset[str]
    ops: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))

    def done(self, *kinds: str) -> list[Op]:
        return [op for kind in kinds for op in self.ops[kind] if op.ok]

    @property
    def final(self) -> Op | None:
        return next(iter(self.done("final")), None)

    @property
    def last(self) -> int | None:
        """The end of the ledger, once that is decided."""
        return int(self.final.value["last"]) if self.final else None

    @property
    def acknowledged(self) -> int:
        """The highest entry that was acknowledged, -1 if none: by an answer, or by what a writer that gave up calls its LAC. (A run is
        answered as a whole; if it fails, some of its entries may have been acknowledged before.)"""
        return max((self.answered, *(int(op.args["lac"]) for op in self.done("give_up"))))

    @property
    def answered(self) -> int:
        """The highest entry of a run that was acknowledged as a whole, -1 if none."""
        return max((int(op.value["last"]) for op in self.done("append")), default=-1)

    def submitted(self) -> dict[int, bytes]:
        """Digest by entry id of everything that was handed to the writer."""
        return {op.args["first"] + i: one for op in self.ops["append"] for i, one in enumerate(split(op.args["digests"]))}

    def entries(self, *kinds: str) -> Iterator[tuple[Op, int, bytes]]:
        """(operation, entry id, digest) of everything that was read."""
        for op in self.done(*kinds):
            first = op.value["first"] if op.kind == "tail" else op.args["first"]
            for i, one in enumerate(split(op.value["digests"])):
                yield op, first + i, one

    def lost(self) -> list[int]:
        """Acknowledged entries that the last reader did not get."""
        seen = {entry for _op, entry, _digest in self.entries("final_read")}
        return [entry for entry in range(self.acknowledged + 1) if entry not in seen]

    def closed_values(self) -> Iterator[tuple[Op, int, int]]:
        """(operation, last entry, length) of everybody who saw the ledger CLOSED."""
        for op in self.done("close", "recover", "open", "final"):
            if op.value["state"] == "CLOSED":
                yield op, int(op.value["last"]), int(op.value["length"])


@dataclass
class LogView:
    """All operations of one log, by kind."""

    name: str
    gone: frozenset[str]
    ops: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))

    def done(self, kind: str) -> list[Op]:
        return [op for op in self.ops[kind] if op.ok]

    @property
    def final(self) -> Op | None:
        return next(iter(self.done("log_final")), None)

    def sequence(self) -> list[Entry]:
        """The log as it was read at the end."""
        return entries_of([self.final]) if self.final else []


Entry = tuple[int, int, bytes]  # ledger, entry id, digest


def entries_of(reads: Iterable[Op]) -> list[Entry]:
    """The entries of consecutive reads of a log, in the order in which they were delivered."""
    return [
        (ledger, first + i, one)
        for op in reads
        for _seq, ledger, first, joined in op.value["runs"]
        for i, one in enumerate(split(joined))
    ]  # fmt: skip


def views_of(ops: Iterable[Op]) -> tuple[dict[int, LedgerView], dict[str, LogView]]:
    """Ledgers by id and logs by name."""
    known = sorted(ops, key=lambda op: op.begin_ns)
    gone = frozenset(op.actor for op in known if op.kind == "killed")
    ledgers: dict[int, LedgerView] = {}
    logs: dict[str, LogView] = {}
    for op in known:
        if op.kind.startswith("log_"):
            name = op.args["log"]
            logs.setdefault(name, LogView(name, gone)).ops[op.kind].append(op)
        elif op.ledger is not None:
            ledgers.setdefault(op.ledger, LedgerView(op.ledger, gone)).ops[op.kind].append(op)
    return dict(sorted(ledgers.items())), logs


def _few(numbers: Sequence[object]) -> str:
    return f"{', '.join(map(str, numbers[:SHOWN_MAX]))}{' ...' if len(numbers) > SHOWN_MAX else ''}"


Found = Iterator[tuple[str, str]]  # rule id, message

# --- rules of one ledger -------------------------------------------------------------------------------------------------


def persistence(ledger: LedgerView) -> Found:
    """I-1: CLOSED at or above every acknowledged entry, and there is one CLOSED value for ever. L-4: it can be closed at the end."""
    if ledger.final is None:
        yield "L-4", "it could not be closed after all faults were healed"
        return
    if ledger.acknowledged > int(ledger.final.value["last"]):
        yield "I-1", f"entry {ledger.acknowledged} was acknowledged, the ledger ends at {ledger.final.value['last']}"
    for op, last, _length in ledger.closed_values():
        if ledger.acknowledged > last and op is not ledger.final:
            yield "I-1", f"entry {ledger.acknowledged} was acknowledged; {op}"


def acknowledged_readable(ledger: LedgerView) -> Found:
    """I-2: at the end every acknowledged entry is read; during the run a bounded read delivers all that it was asked for, or an error of
    bookies, never "there is no such entry" (RD-6)."""
    if missing := ledger.lost():
        yield "I-2", f"{len(missing)} acknowledged entries cannot be read at the end: {_few(missing)}"
    for op in ledger.done("read", "final_read"):
        wanted = op.args["last"] - op.args["first"] + 1
        if len(split(op.value["digests"])) != wanted:
            yield "I-2", f"{len(split(op.value['digests']))} entries where {wanted} were asked for: {op}"
    for op in (*ledger.ops["read"], *ledger.ops["tail"]):
        if op.error in NEGATIVE:
            yield "I-2", f"a bounded read met an entry that no bookie has: {op}"


def _entries(append: Op) -> range:
    return range(append.args["first"], append.args["first"] + append.args["count"])


def integrity(ledger: LedgerView) -> Found:
    """I-5: an entry that is read is the entry that was written."""
    submitted = ledger.submitted()
    for op, entry, found in ledger.entries("read", "tail", "final_read"):
        if entry not in submitted:
            yield "I-5", f"entry {entry} was never written: {op}"
        elif found != submitted[entry]:
            yield "I-5", f"entry {entry} is not what was written: {op}"


def no_dirty_read(ledger: LedgerView) -> Found:
    """I-6: nobody saw a LAC or an entry above the last entry; a LAC never runs ahead of the writer, nor back within one handle.

    Apache's recoverer stamps a LAC that moves into what it writes back, and Apache's fenced writer closes the ledger at its own end
    beneath it. A reader that has not heard of the recovery yet believes that LAC; no reader can tell. Such a sight is counted by itself.
    """
    last = ledger.last
    for op, lac in _lacs(ledger):
        if last is not None and lac > last:
            yield _dirty(ledger, op), f"last add confirmed {lac} of a ledger that ends at {last}: {op}"
        begun = max((_entries(one)[-1] for one in ledger.ops["append"] if op.end_ns and one.begin_ns <= op.end_ns), default=-1)
        if lac > begun:
            yield "I-6", f"last add confirmed {lac} when {begun} was the highest entry written: {op}"
    if last is not None:
        for op, entry, _digest in ledger.entries("read", "tail"):
            if entry > last:
                yield _dirty(ledger, op), f"entry {entry} was read from a ledger that ends at {last}: {op}"
    highest: dict[str, int] = {}
    for op, lac in _lacs(ledger):
        handle = op.args["handle"]
        if lac < highest.get(handle, -1):
            yield "I-6", f"last add confirmed went back from {highest[handle]} to {lac}: {op}"
        highest[handle] = max(lac, highest.get(handle, -1))
        if op.kind == "wait_for" and op.value["reached"] and lac < op.args["entry"]:
            yield "I-6", f"the wait was over at last add confirmed {lac}: {op}"


def _dirty(ledger: LedgerView, op: Op) -> str:
    began = [one.begin_ns for one in ledger.ops["recover"] if one.args.get("by") == "java"]
    return BESIDE_JAVA if began and min(began) <= op.end_ns else "I-6"


def _lacs(ledger: LedgerView) -> list[tuple[Op, int]]:
    found = [(op, int(op.value["lac"])) for op in ledger.done("lac", "wait_for")]
    return sorted(found, key=lambda pair: pair[0].begin_ns)


def agreement(ledger: LedgerView) -> Found:
    """I-7: all reads of an entry agree; all who saw the ledger CLOSED agree on last entry and length. Only
    the handle of a Java recoverer may have a length of its own (wire-protocol.md 11.4)."""
    first_seen: dict[int, tuple[Op, bytes]] = {}
    for op, entry, found in ledger.entries("read", "tail", "final_read"):
        other = first_seen.setdefault(entry, (op, found))
        if other[1] != found:
            yield "I-7", f"entry {entry} differs between two reads: {other[0]} and {op}"
    values = sorted(ledger.closed_values(), key=lambda value: value[0].kind != "final")
    for op, last, length in values[1:]:
        if last != values[0][1] or (length != values[0][2] and op.args.get("by") != "java"):
            yield "I-7", f"closed at {values[0][1:]} and at {(last, length)}: {values[0][0]} and {op}"


def callback_discipline(ledger: LedgerView) -> Found:
    """I-14: each add is answered exactly once; OKs in the order of ids without gaps; no OK after an error; LAC = last OK."""
    appends = sorted(ledger.ops["append"], key=lambda op: op.args["first"])
    for op in appends:
        if op.ends > 1:
            yield "I-14", f"{op.ends} answers to one add: {op}"
        if op.ok and op.value["last"] != _entries(op)[-1]:
            yield "I-14", f"entry {op.value['last']} was acknowledged where {_entries(op)[-1]} was due: {op}"
    following, failed = 0, None
    for op in sorted((op for op in appends if op.ends), key=lambda op: op.order):
        if not op.ok:
            failed = failed or op
            continue
        if failed is not None:
            yield "I-14", f"acknowledged after a failure: {op} after {failed}"
        if op.args["first"] != following:
            yield "I-14", f"acknowledged out of order, {following} was due: {op}"
        following = _entries(op)[-1] + 1
    highest = _entries(failed)[-1] - 1 if failed is not None else ledger.answered  # of the failed run, the last entry was not acknowledged
    for op in ledger.done("give_up"):
        if not ledger.answered <= op.args["lac"] <= max(highest, ledger.answered):
            yield "I-14", f"the writer's last add confirmed is {op.args['lac']}, the last acknowledgement {ledger.answered}"


def everything_answered(view: LedgerView | LogView) -> Found:
    """L-1: whatever was asked for was answered, well or badly, unless who asked was killed."""
    for op in (op for ops in view.ops.values() for op in ops):
        if op.ends == 0 and op.actor not in view.gone:
            yield "L-1", f"never answered: {op}"


def handle_honesty(ledger: LedgerView) -> Found:
    """I-15: a close or a recovery that returned means that the stored metadata is CLOSED and equal to what the handle said. The metadata
    read afterwards by anybody must be CLOSED too."""
    for op in ledger.done("close", "recover"):
        if op.value["state"] != "CLOSED":
            yield "I-15", f"success, but not CLOSED: {op}"
        if ledger.final is not None and op.value["last"] != ledger.final.value["last"]:
            yield "I-15", f"success at another end than {ledger.final.value['last']}: {op}"
        if op.kind == "close" and op.value["last"] != ledger.answered:
            yield "I-15", f"closed by its writer at another entry than the last acknowledged {ledger.answered}: {op}"
    first = _first_closed(ledger)
    for op in ledger.done("open"):
        if first is not None and op.value["state"] != "CLOSED" and op.begin_ns > (first.end_ns or 0):
            yield "I-15", f"{op.value['state']} after {first}"


def _first_closed(ledger: LedgerView) -> Op | None:
    return min((op for op, _last, _length in ledger.closed_values()), key=lambda op: op.end_ns or 0, default=None)


def fence_holds(ledger: LedgerView) -> Found:
    """I-13: what is handed to a writer after somebody saw the ledger CLOSED is never acknowledged."""
    first = _first_closed(ledger)
    for op in ledger.done("append"):
        if first is not None and op.begin_ns > (first.end_ns or 0):
            yield "I-13", f"acknowledged after the ledger was closed: {op} after {first}"


def shape(ledger: LedgerView) -> Found:
    """I-8 on the last version: fragments start at 0 and rise, each with a full ensemble."""
    if ledger.final is None:
        return
    fragments = ledger.final.value["fragments"]
    starts = [first for first, _ensemble in fragments]
    if not starts or starts[0] != 0 or any(a >= b for a, b in zip(starts, starts[1:], strict=False)):
        yield "I-8", f"fragments start at {starts}"
    if any(len(ensemble) != ledger.final.value["ensemble_size"] for _first, ensemble in fragments):
        yield "I-8", f"an ensemble of the wrong size in {fragments}"


def tails_in_order(ledger: LedgerView) -> Found:
    """I-7 for a tailing reader: every entry once, from the first on, without gaps."""
    following: dict[str, int] = {}
    for op in ledger.done("tail"):
        due = following.get(op.args["handle"], 0)
        count = len(split(op.value["digests"]))
        if count and (op.value["first"], op.value["last"]) != (due, due + count - 1):
            yield "I-7", f"entry {due} was due: {op}"
        following[op.args["handle"]] = due + count


def copies(ledger: LedgerView) -> Found:
    """I-4: CLOSED means that every entry has its ack quorum of copies in the recorded write set, acknowledged or not. I-G2: all of the
    write quorum, if the ledger is sealed. No bookie lost data, so a copy that is missing was never made."""
    for op in ledger.done("copies"):
        w, a = op.args["w"], op.args["a"]
        short = [entry for entry, missing in op.value["missing"] if w - missing < a]
        if short:
            yield "I-4", f"fewer than {a} copies of entries {_few(short)}"
        if op.value["sealed"] and op.value["missing"]:
            yield "I-G2", f"fewer than {w} copies of entries {_few([entry for entry, _missing in op.value['missing']])} of a sealed ledger"


def length(ledger: LedgerView) -> Found:
    """I-18: CLOSED means length = the payload bytes. Apache's recovery may store more (wire-protocol.md 11.4), never less."""
    if ledger.final is None:
        return
    reads = ledger.done("final_read")
    if sum(op.args["last"] - op.args["first"] + 1 for op in reads) != ledger.final.value["last"] + 1:
        return  # not read as a whole: I-2 tells
    stored, real = int(ledger.final.value["length"]), sum(op.value["bytes"] for op in reads)
    foreign = any(op.args["by"] == "java" for op in ledger.ops["recover"])
    if stored < real or (stored > real and not foreign):
        yield "I-18", f"length {stored}, payloads of {real} bytes"


LEDGER_RULES: tuple[Callable[[LedgerView], Found], ...] = (
    persistence,
    acknowledged_readable,
    integrity,
    no_dirty_read,
    agreement,
    callback_discipline,
    everything_answered,
    handle_honesty,
    fence_holds,
    shape,
    length,
    tails_in_order,
    copies,
)

# --- rules of one log ----------------------------------------------------------------------------------------------------


def log_complete(log: LogView) -> Found:
    """LOG-I1: every acknowledged entry is in the log, once, where its writer was told; nothing is in it that nobody wrote or twice.
    LOG-I4: an acknowledgement that reached an older leader is at or below the recorded end of its ledger."""
    if log.final is None:
        yield "L-4", "it could not be read after all faults were healed"
        return
    at = {one: (ledger, entry) for ledger, entry, one in log.sequence()}
    if len(at) != len(log.sequence()):
        yield "LOG-I1", f"{len(log.sequence()) - len(at)} entries are in the log more than once"
    written = {op.args["digest"] for op in log.ops["log_append"]}
    foreign = [place for one, place in at.items() if one not in written]
    if foreign:
        yield "LOG-I1", f"nobody wrote what is at {_few(foreign)}"
    ends = {int(ledger): end for ledger, end in log.final.value["ends"].items()}
    for op in log.done("log_append"):
        told = (op.value["ledger"], op.value["entry"])
        if told[1] > ends.get(told[0], -1):
            late = any(one.end_ns < op.end_ns and one.value["ledger"] > told[0] for one in log.done("log_open"))  # type: ignore[operator]
            yield "LOG-I4" if late else "LOG-I1", f"acknowledged beyond the end {ends.get(told[0])} of its ledger: {op}"
        elif at.get(op.args["digest"]) != told:
            yield "LOG-I1", f"acknowledged, but found at {at.get(op.args['digest'])}: {op}"


def log_order(log: LogView) -> Found:
    """LOG-I2: an entry that was handed in after another one was acknowledged comes later in the log."""
    appends = {op.args["digest"]: op for op in log.ops["log_append"]}
    earliest: Op | None = None  # of the entries behind the one looked at, the one that was acknowledged first
    for _ledger, _entry, one in reversed(log.sequence()):
        op = appends.get(one)
        if op is None:
            continue
        if earliest is not None and earliest.end_ns is not None and earliest.end_ns < op.begin_ns:
            yield "LOG-I2", f"{op} was begun after the acknowledgement of {earliest} and comes before it"
        if op.ok and (earliest is None or (op.end_ns or 0) < (earliest.end_ns or 0)):
            earliest = op


def log_agreement(log: LogView) -> Found:
    """LOG-I2: whoever reads the log from its start sees a beginning of the same sequence, without gaps."""
    whole = log.sequence()
    by_reader: dict[str, list[Op]] = defaultdict(list)
    for op in log.done("log_read"):
        by_reader[op.args["reader"]].append(op)
    for reader, reads in by_reader.items():
        seen = entries_of(reads)
        if seen != whole[: len(seen)]:
            wrong = next(i for i, (a, b) in enumerate(zip([*seen, None], [*whole, None], strict=False)) if a != b)
            yield "LOG-I2", f"reader {reader} saw another entry than the last reader at place {wrong} of {len(seen)}"


def log_two_open(log: LogView) -> Found:
    """LOG-I3: at most the last two listed ledgers are not CLOSED."""
    for op in log.done("log_list"):
        if op.value["unclosed"]:
            yield "LOG-I3", f"not CLOSED though two others follow: {_few(op.value['unclosed'])} in {op}"


def log_list_changes(log: LogView) -> Found:
    """LOG-I5: the list only grows at the end and only loses a prefix."""
    before: list[int] = []
    for op in log.done("log_list"):
        now = op.value["ledgers"]
        kept = [ledger for ledger in before if ledger in now]
        if now[: len(kept)] != kept or (before and kept != before[len(before) - len(kept) :]):
            yield "LOG-I5", f"the list went from {_few(before)} to {_few(now)}"
        before = now


def log_answered_once(log: LogView) -> Found:
    """I-14 for the appends of a log."""
    for op in log.ops["log_append"]:
        if op.ends > 1:
            yield "I-14", f"{op.ends} answers to one append: {op}"


LOG_RULES: tuple[Callable[[LogView], Found], ...] = (
    log_complete,
    log_order,
    log_agreement,
    log_two_open,
    log_list_changes,
    log_answered_once,
    everything_answered,
)
