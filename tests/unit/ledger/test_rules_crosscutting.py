"""Rules that bind all machines, or a machine and its bookies together, looked at from outside: in simulated runs, on simulated disks."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest

from bk_core import protocol
from bk_core.protocol import effects as ledger_effects
from bk_core.protocol.bookie import records
from bk_core.protocol.effects import SendAdds
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log import effects as log_effects
from bk_core.protocol.wire.messages import Status
from tests.simulation.bookies import SimBookie
from tests.simulation.clients import Client
from tests.simulation.runs import run_of
from tests.simulation.scenario import Scenario
from tests.simulation.swarm import LedgerPlay
from tests.unit.ledger.writer_script import WriterScript

PROTOCOL = str(Path(protocol.__file__).parent)
DICE_OF_THE_PROCESS = random.random.__self__  # type: ignore[attr-defined]
DOORS = {*get_args(ledger_effects.Effect), *get_args(log_effects.LogEffect), *get_args(records.Effect)}
OUTSIDE = {"time", "datetime", "random", "_random", "posix", "os", "io", "_io", "socket", "_socket", "_thread", "threading", "uuid"}
MACHINES = {
    "LedgerWriter", "LedgerRecovery", "RangeReader", "LacReader", "Tail", "LedgerCheck", "FragmentRepair", "LogLeader", "LogTrimming",
    "LogReaderOrder",
    "BookieMachine",
}  # fmt: skip


# --- SM-2 ------------------------------------------------------------------------------------------------------------


def _outside(frame: FrameType, event: str, called: Any) -> str | None:
    """Return the name outside the protocol that a function reaches for directly, or None. Dice handed in with a seed are inputs (SM-4)."""
    if event == "c_call":
        if isinstance(getattr(called, "__self__", None), random.Random) and called.__self__ is not DICE_OF_THE_PROCESS:
            return None
        caller, owner = frame, getattr(called, "__self__", None)
        kind = owner if isinstance(owner, type) else type(owner)
        names = {getattr(called, "__module__", None), kind.__module__}
    elif event == "call" and frame.f_back is not None:
        caller, names = frame.f_back, {frame.f_globals.get("__name__")}
    else:
        return None
    if not caller.f_code.co_filename.startswith(PROTOCOL):
        return None
    found = names & OUTSIDE
    return f"{Path(caller.f_code.co_filename).name} line {caller.f_lineno} calls {sorted(map(str, found))}" if found else None


@contextmanager
def watched(found: set[str]) -> Iterator[None]:
    def look(frame: FrameType, event: str, called: Any) -> None:
        if (reached := _outside(frame, event, called)) is not None:
            found.add(reached)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def test_inputs_and_outputs_are_the_only_doors_of_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """SM-2: whatever happens in a storm, a machine answers with effects and nothing else, and reads no clock, file, socket or dice."""
    seen: Counter[tuple[str, type]] = Counter()
    act, perform = Client.act, SimBookie._perform

    def checked_act(self: Client, given: list[Any]) -> None:
        assert isinstance(given, list)
        seen.update((type(self.machine).__name__, type(effect)) for effect in given)
        act(self, given)

    def checked_perform(self: SimBookie, effect: Any, call: Any) -> None:
        seen[type(self.machine).__name__, type(effect)] += 1
        perform(self, effect, call)

    monkeypatch.setattr(Client, "act", checked_act)
    monkeypatch.setattr(SimBookie, "_perform", checked_perform)
    reached: set[str] = set()
    with watched(reached):
        for seed in range(8):  # enough for every machine to have taken part
            run_of(seed, {"readers": 1, "replicators": 1, "recoverers": 1}).play()
            run_of(seed, {"log": True}).play()
    assert not reached
    assert {kind for _, kind in seen} <= DOORS
    assert {machine for machine, _ in seen} >= MACHINES
    for _, kind in seen:  # an effect is a value: performing it twice or later cannot reach back into the machine
        assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_look_at_the_clock_would_be_seen() -> None:
    """SM-2: the watch above is not blind, neither for what is written in C nor for Python."""
    code = "import time, random, datetime\ntime.monotonic()\nrandom.choice([1])\nrandom.random()\ndatetime.datetime.now()\nlen('x')\ndice()"
    reached: set[str] = set()
    with watched(reached):
        exec(compile(code, str(Path(PROTOCOL, "ledger", "invented.py")), "exec"), {"dice": random.Random(1).random})
    assert sorted(line.split(" calls ")[0] for line in reached) == [f"invented.py line {n}" for n in (2, 3, 4, 5)]


# --- WR-3 ------------------------------------------------------------------------------------------------------------


def copies(cluster: Any, ledger_id: int) -> dict[int, dict[str, bytes]]:
    """Entry, bookie: the stored body."""
    found: dict[int, dict[str, bytes]] = {}
    for name, bookie in cluster.bookies.items():
        for entry_id in bookie.storage.entry_ids(ledger_id):
            body = bookie.sound_body(ledger_id, entry_id)
            assert body is not None
            found.setdefault(entry_id, {})[name] = body
    return found


def test_what_is_sent_again_after_a_change_is_the_same_bytes_everywhere() -> None:
    """WR-3: entries 4 and 5 were packed when the LAC was 1. They reach b4 when it is 3, and are what b1 got at first."""
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append(2)
    s.settle()
    held = [s.hold("add", to="b2"), s.hold("add", to="b3")]
    w.append(4)
    s.until(lambda: s.stored(5) == ["b1"])
    for rule in held:
        s.release(rule, only=2)
    s.until(lambda: w.last_add_confirmed == 3)
    s.crash("b3")
    s.until(lambda: "b4" in s.stored(5))
    s.release(held[0])
    s.settle()
    assert s.fragments == {0: ("b1", "b2", "b3"), 4: ("b1", "b2", "b4")}
    found = copies(s.cluster, s.ledger.ledger_id)
    assert [sorted(found[entry_id]) for entry_id in (4, 5)] == [["b1", "b2", "b4"]] * 2
    for entry_id, by_bookie in found.items():
        assert len(set(by_bookie.values())) == 1, entry_id
    assert {layout.HEADER.unpack_from(found[entry_id]["b4"])[2] for entry_id in (4, 5)} == {1}


def test_all_copies_of_one_writer_are_equal_after_a_storm() -> None:
    """WR-3, with crashes, re-sends and changes of the ensemble; nobody else writes to the ledger here."""
    changes = 0
    for seed in range(40):
        run = LedgerPlay(
            seed, {"recoverers": 0, "replicators": 0, "damage": 0.0, "wipes": 0, "writer_dies_ms": 0, "delete": False, "crash": 0.3}
        )
        run.play()
        if run.recovered:  # the writer gave up, and what a recovery wrote back is a packing of its own
            continue
        changes += run.world.stats["ensemble changes"]
        for entry_id, by_bookie in copies(run.cluster, run.truth.ledger_id).items():
            assert len(set(by_bookie.values())) == 1, f"entry {entry_id} of seed {seed}"
    assert changes > 5


# --- G-15, G-24 ------------------------------------------------------------------------------------------------------


def test_a_guaranteed_ledger_is_full_although_one_bookie_lagged_and_one_was_lost() -> None:
    """G-15. I-G1: every entry of the first fragment on its three bookies; I-G3: the LAFR that is told never runs ahead of the copies;
    I-G2: sealed only when every entry up to the last is there three times."""
    s = Scenario(3, 3, 2, bookies=5, gwq=True)
    w = s.writer()
    slow = s.hold("add", to="b3")
    w.append(4)
    s.until(lambda: s.acked == [0, 1, 2, 3])
    assert w.machine.last_add_fully_replicated == -1
    s.release(slow, only=2)
    s.until(lambda: w.machine.last_add_fully_replicated == 1)
    s.crash("b3")
    w.append(1)
    s.until(lambda: w.machine.last_add_fully_replicated == 4)
    first, second = s.fragments
    assert (first, second) == (0, 2)
    for entry_id in range(5):
        assert set(s.fragments[first if entry_id < second else second]) <= set(s.stored(entry_id))
    w.close()
    s.settle()
    assert (s.state, s.last_entry, s.metadata.sealed) == (LedgerState.CLOSED, 4, True)


def test_metadata_of_a_guaranteed_ledger_is_written_at_changes_and_close_only() -> None:
    """G-24: LAFR moves thirty times, and metadata knows nothing of it; payloads are those of the caller, body for body."""
    s = Scenario(3, 3, 2, bookies=4, gwq=True)
    w = s.writer()
    for _ in range(30):
        w.append(1)
        s.run(20)
    assert w.machine.last_add_fully_replicated == 29
    assert (s.writes(w), s.ledger.version) == (0, 0)
    s.crash("b2")
    w.append(1)
    s.until(lambda: w.machine.last_add_fully_replicated == 30)
    assert s.writes(w) == 1
    assert s.metadata.custom == {"gwq": b"1"}
    w.close()
    s.settle()
    assert s.writes(w) == 2
    assert s.metadata.custom == {"gwq": b"1", "gwq.sealed": b"1"}
    for entry_id, by_bookie in copies(s.cluster, s.ledger.ledger_id).items():
        for body in by_bookie.values():
            entry = layout.decode_body(body, s.ledger.ledger_id, entry_id, s.metadata.digest_type, b"")
            assert entry.payload == s.ledger.submitted[entry_id]


def test_a_guaranteed_entry_is_packed_as_any_other() -> None:
    """G-24: with the same history the same bytes leave the writer, marked or not; only LAC is in them, though LAFR lies behind it."""
    frames = []
    for guaranteed in (False, True):
        script = WriterScript((3, 3, 2), "abcd", guaranteed=guaranteed).append("t", b"one", b"two").ack("ab", 0, 2)
        frames.append([bytes(effect.run.frames) for effect in script.append("u", b"three").of(SendAdds)])
        assert script.refuse("a", 2, Status.UNAUTHORIZED).writer.last_add_confirmed == 1
    assert frames[0] == frames[1] and frames[0]
