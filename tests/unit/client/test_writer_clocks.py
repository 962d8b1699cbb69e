"""The clocks of hosts by the ledgers that they made: what is wrong now is found, what was set right or restored is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bk_core.client.doctor.clocks import UNKNOWN_MS, WriterClocks
from bk_core.client.log.live_writers import WRITER
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
OPEN = LedgerMetadata(1, 1, 1, LedgerState.OPEN, (Fragment(0, ("a:1",)),))


class Ledgers:
    """A cluster's ledgers in the order of their ids."""

    def __init__(self) -> None:
        self.clocks, self.newest_ms, self.next_id = WriterClocks(), 0, 0

    def made(self, at_min: float, apart_min: float, host: str = "", *, changed_min: float | None = None) -> int:
        """A ledger whose node is made ``at_min`` minutes from now by a host whose clock is ``apart_min`` ahead; it is CLOSED unless
        ``changed_min`` is None, at a change of the node so many minutes later."""
        created_ms = NOW_MS + int(at_min * MINUTE_MS)
        custom = {WRITER: json.dumps({"host": host}).encode()} if host else {}
        metadata = replace(OPEN, ctime_ms=created_ms + int(apart_min * MINUTE_MS), custom=custom)
        if changed_min is not None:
            metadata = metadata.closed(3, 30)
        modified_ms = created_ms + int((changed_min or 0) * MINUTE_MS)
        self.newest_ms = max(self.newest_ms, modified_ms)
        self.next_id += 1
        self.clocks.take(self.next_id, Versioned(b"", 1, created_ms, modified_ms), metadata)
        return self.next_id

    def found(self) -> tuple[int, ...]:
        return tuple(ledger for finding in self.clocks.findings(self.newest_ms) for ledger in finding.ledgers)


@pytest.mark.parametrize("apart_min", [7, -7])
def test_a_wrong_clock_is_found_until_the_host_makes_a_ledger_with_the_right_time(apart_min: int) -> None:
    ledgers = Ledgers()
    ledgers.made(-90, apart_min, "h1", changed_min=1)
    wrong = ledgers.made(-60, apart_min, "h1", changed_min=1)
    ledgers.made(-50, 0, "h2", changed_min=1)
    ledgers.made(-40, 0, changed_min=1)
    assert ledgers.found() == (wrong,), "another host's ledger says nothing"
    (finding,) = ledgers.clocks.findings(ledgers.newest_ms)
    assert f"the clock of h1 was up to 7m {'ahead of' if apart_min > 0 else 'behind'}" in finding.what
    ledgers.made(-30, 0, "h1")
    assert ledgers.found() == ()
    again = ledgers.made(-20, apart_min, "h1")
    assert ledgers.found() == (again,)


def test_a_ledger_that_names_no_host_tells_for_an_hour() -> None:
    ledgers = Ledgers()
    wrong = ledgers.made(0, 9, changed_min=1)
    ledgers.made(10, 0, changed_min=1)
    assert ledgers.found() == (wrong,)
    ledgers.made(UNKNOWN_MS / MINUTE_MS + 1, 0)
    assert ledgers.found() == ()


@pytest.mark.parametrize("host", ["h1", ""])
def test_a_node_that_was_restored_says_nothing_of_a_clock(host: str) -> None:
    """It is younger than its ledger, and never changed since, although a ledger is made OPEN."""
    ledgers = Ledgers()
    ledgers.made(-100, 0, host, changed_min=1)
    ledgers.made(0, -80, host, changed_min=0)
    assert ledgers.found() == ()
    ledgers.made(1, -80, host, changed_min=2)
    assert len(ledgers.found()) == 1, "a clock that is behind"


@pytest.mark.parametrize("host", ["h1", ""])
def test_a_restored_node_that_was_changed_is_known_by_the_ledgers_behind_it(host: str) -> None:
    ledgers = Ledgers()
    ledgers.made(0, -80, host, changed_min=5)
    ledgers.made(-70, 0, "h2", changed_min=1)
    assert ledgers.found() == ()
