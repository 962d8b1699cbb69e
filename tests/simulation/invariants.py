"""What must hold after every step, and at the end (replication-protocol.md 13.1, 13.2). Each assertion names its rule and the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.protocol.ledger.metadata import LedgerState
from tests.simulation.cluster import LEDGER, decode

if TYPE_CHECKING:
    from tests.simulation.cluster import Run


class InvariantViolated(AssertionError):
    pass


def _require(good: bool, rule: str, run: Run, detail: str) -> None:
    if not good:
        story = "\n".join(run.world.lines[-40:])
        raise InvariantViolated(f"{rule} broken by seed {run.world.seed}: {detail}\n{story}")


def check_step(run: Run) -> None:
    metadata = run.world.metadata
    if metadata.state is LedgerState.CLOSED:
        highest = max(run.world.acknowledged, default=-1)
        _require(highest <= metadata.last_entry_id, "I-1 persistence", run, f"acknowledged {highest}, closed at {metadata.last_entry_id}")
    closed = [m for m in run.world.history if m.state is LedgerState.CLOSED]
    _require(len(closed) <= 1, "META-9", run, "closed more than once")


def check_end(run: Run) -> None:
    world, metadata = run.world, run.world.metadata
    _require(metadata.state is LedgerState.CLOSED, "L-4", run, f"ledger is {metadata.state.name} at the end")
    for entry_id, payload in world.acknowledged.items():
        holders = _holders(run, entry_id)
        quorum = metadata.ack_quorum_size
        _require(len(holders) >= quorum, "I-3 acknowledged replicated", run, f"entry {entry_id} on {holders}")
        for name in holders:
            stored = bytes(decode(world.bookies[name].storage.entry(LEDGER, entry_id) or b"", entry_id).payload)
            _require(stored == payload, "I-5 integrity", run, f"entry {entry_id} on {name}")
    for entry_id in range(metadata.last_entry_id + 1):
        _require(len(_holders(run, entry_id)) >= metadata.ack_quorum_size, "I-4 closed replicated", run, f"entry {entry_id}")
    length = sum(len(world.submitted[e]) for e in range(metadata.last_entry_id + 1))
    _require(length == metadata.length, "I-18 length", run, f"{metadata.length} recorded, {length} written")
    good = [first for first, ok in run.completed if ok]
    _require(good == sorted(set(good)), "I-14 order", run, str(run.completed))
    if not all(ok for _, ok in run.completed):
        first_bad = next(i for i, (_, ok) in enumerate(run.completed) if not ok)
        _require(not any(ok for _, ok in run.completed[first_bad:]), "I-14 nothing after an error", run, str(run.completed))
    for name, bookie in world.bookies.items():
        record = bookie.storage.ledger(LEDGER)
        lac = record.last_add_confirmed if record else -1
        _require(lac <= metadata.last_entry_id, "I-6 no dirty LAC", run, f"{name} has LAC {lac}, ledger ends at {metadata.last_entry_id}")
    for seen in run.closed:
        _require(seen.last_entry_id == metadata.last_entry_id, "I-15 handle honesty", run, f"{seen.last_entry_id}")


def _holders(run: Run, entry_id: int) -> list[str]:
    metadata = run.world.metadata
    ensemble = metadata.fragment_of(entry_id).ensemble
    size, write = metadata.ensemble_size, metadata.write_quorum_size
    names = [ensemble[(entry_id + k) % size] for k in range(write)]
    return [n for n in names if run.world.bookies[n].storage.entry(LEDGER, entry_id) is not None]
