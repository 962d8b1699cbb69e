"""Deferred sync: what a force makes durable (WR-17)."""

from __future__ import annotations

from bk_core.errors import WriteFailedError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.write.options import WriterOptions
from tests.simulation.scenario import Scenario


def test_a_force_does_not_vouch_for_what_restarted_bookies_forgot() -> None:
    """WR-17, I-2, I-17.

    1. e0 is acknowledged by b1, b2 and b3, and synced by none of them; no request is outstanding.
    2. All three crash and come back without e0. They would answer OK to a force: what they have is durable.
    3. The writer has heard that it lost them, so there is no force, and the ledger ends before e0.
    """
    s = Scenario(3, 3, 2, exact=False)
    w = s.writer(options=WriterOptions(deferred_sync=True))
    for bookie in ("b1", "b2", "b3"):
        s.slow_disk(bookie, 1000)
    w.append(1)
    s.until(lambda: w.machine.acknowledged_head == 0)
    s.run(10)
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
        s.slow_disk(bookie, 1)
        s.restart(bookie)
    s.run(20)
    assert s.stored(0) == []
    w.force()
    s.run(50)
    assert isinstance(w.machine.error, WriteFailedError)
    assert (s.state, s.last_entry, w.last_add_confirmed) == (LedgerState.CLOSED, -1, -1)
