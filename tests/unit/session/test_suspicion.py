"""The times at which a bookie whose connection broke is suspect, is asked again, and is trusted again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bk_core.protocol.session.suspicion import PROBE_AGAIN_NS, Suspicion
from bk_core.protocol.wire.messages import Status

AFTER_NS = 30_000_000_000
SILENT = frozenset({Status.UNAVAILABLE, Status.TIMEOUT, Status.PROTOCOL_ERROR, Status.NOT_ADMITTED})


def test_a_broken_connection_makes_a_suspect_but_that_of_batch_reads_does_not() -> None:
    """SES-1: an old bookie closes the connection that asks for a batch read; reading from it does not make it suspect."""
    suspicion = Suspicion(AFTER_NS)
    suspicion.broke("old", "batch", 1)
    assert suspicion.members() == frozenset() and suspicion.next_ns(1) is None
    for kind in ("data", "control", "recovery-17"):
        suspicion.broke(kind, kind, 1)
    assert suspicion.members() == {"data", "control", "recovery-17"}


@pytest.mark.parametrize("status", [status for status in Status if status not in SILENT])
def test_any_answer_ends_the_suspicion(status: Status) -> None:
    """SES-2: a refusal proves as well as an OK that somebody is there."""
    suspicion = Suspicion(AFTER_NS)
    suspicion.broke("b", "data", 1)
    suspicion.noted("b", status)
    assert suspicion.members() == frozenset()


@pytest.mark.parametrize("status", SILENT)
def test_silence_does_not_end_it(status: Status) -> None:
    """SES-2: what the client says in place of an answer is none."""
    suspicion = Suspicion(AFTER_NS)
    suspicion.broke("b", "data", 1)
    suspicion.noted("b", status)
    assert suspicion.members() == {"b"}


def test_a_suspect_is_asked_after_the_time_and_again_while_it_is_silent() -> None:
    """SES-3: never two questions at a time."""
    suspicion = Suspicion(AFTER_NS)
    suspicion.broke("b", "data", 7)
    at = suspicion.next_ns(7)
    assert at == 7 + AFTER_NS and suspicion.due(at - 1, {"b"}) == []
    assert suspicion.due(at, {"b"}) == ["b"]
    assert suspicion.due(at + AFTER_NS, {"b"}) == [] and suspicion.next_ns(at) is None
    suspicion.probed("b", Status.TIMEOUT, at + 3)
    assert suspicion.members() == {"b"} and suspicion.next_ns(at + 3) == at + 3 + PROBE_AGAIN_NS
    assert suspicion.due(at + 3 + PROBE_AGAIN_NS, {"b"}) == ["b"]
    suspicion.probed("b", Status.NO_LEDGER, at + 4 + PROBE_AGAIN_NS)
    assert suspicion.members() == frozenset() and suspicion.next_ns(at) is None


def test_who_is_not_registered_is_asked_once_it_is_again() -> None:
    """SES-3."""
    suspicion = Suspicion(AFTER_NS)
    suspicion.broke("b", "data", 0)
    assert suspicion.due(AFTER_NS, {"other"}) == [] and suspicion.next_ns(AFTER_NS) is None
    assert suspicion.due(3 * AFTER_NS, {"b", "other"}) == ["b"]


def test_further_breaks_do_not_prolong_it() -> None:
    """SES-4: who reads from it all the time, and fails, does not keep it from being asked."""
    suspicion = Suspicion(AFTER_NS)
    for now in range(0, AFTER_NS, AFTER_NS // 10):
        suspicion.broke("b", "data", now)
    assert suspicion.next_ns(AFTER_NS - 1) == AFTER_NS


def test_without_a_quarantine_nobody_is_suspect() -> None:
    """SES-1."""
    suspicion = Suspicion(0)
    suspicion.broke("b", "data", 1)
    assert suspicion.members() == frozenset()


def _restarts(rng: random.Random, bookies: list[str]) -> Iterator[tuple[str, int, int]]:
    at = 0
    for bookie in bookies:
        at += rng.randrange(1, 4 * AFTER_NS)
        yield bookie, at, at + rng.randrange(1, 2 * AFTER_NS)


@pytest.mark.parametrize("seed", range(200))
def test_whoever_is_back_for_a_while_is_trusted(seed: int) -> None:
    """SES-3, SES-4: bookies go and come at any time under a client that asks nothing by itself; none is suspect for longer than the
    quarantine's time behind its return."""
    rng = random.Random(seed)
    quarantine_ns = rng.choice([1_000_000, PROBE_AGAIN_NS, AFTER_NS])
    suspicion = Suspicion(quarantine_ns)
    away = {bookie: (down, up) for bookie, down, up in _restarts(rng, ["a", "b", "c"])}
    now = 0
    changes = sorted(time for times in away.values() for time in times)
    while changes or suspicion.next_ns(now) is not None:
        probe = suspicion.next_ns(now)
        now = min(time for time in [*changes[:1], probe] if time is not None)
        changes = [time for time in changes if time > now]
        for bookie, (down, up) in away.items():
            if now == down:
                suspicion.broke(bookie, "data", now)
            back_for = now - up
            assert back_for <= quarantine_ns or bookie not in suspicion.members(), f"seed {seed}: {bookie}"
        for bookie in suspicion.due(now, {bookie for bookie, (down, up) in away.items() if rng.random() < 0.5 or now >= up}):
            down, up = away[bookie]
            suspicion.probed(bookie, Status.UNAVAILABLE if down <= now < up else Status.OK, now)
    for bookie in suspicion.due(now, set(away)):  # their return to the registry is what asks them
        suspicion.probed(bookie, Status.OK, now)
    assert suspicion.members() == frozenset(), f"seed {seed}"
