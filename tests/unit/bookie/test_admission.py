"""Connections that are given up, polls that are not kept waiting, fences on the last of the disk (BKE-3..BKE-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.protocol.bookie.admission import ConnectionLimits, Quiet, overdue, stranger_makes_room, to_make_room
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.unit.bookie.host import Bookie, L, add, fence, poll, read

LIMITS = ConnectionLimits(stalled_s=60.0, idle_s=3600.0, spare_s=5.0)
NEW = Quiet(0.0, 0.0, half_frame=False, unsent=False, waits=False)


@pytest.mark.parametrize(
    ("quiet", "words"),
    [
        (NEW, None),
        (replace(NEW, half_frame=True, received_s=59.9), None),
        (replace(NEW, half_frame=True, received_s=60.0), "nothing more of a request"),
        (replace(NEW, half_frame=True, received_s=60.0, waits=True), "nothing more of a request"),  # what was asked before is no excuse
        (replace(NEW, unsent=True, received_s=1e6, sent_s=59.9), None),  # a slow reader
        (replace(NEW, unsent=True, sent_s=60.0), "no answer was taken"),
        (replace(NEW, unsent=True, sent_s=60.0, waits=True), "no answer was taken"),
        (replace(NEW, waits=True, received_s=1e6), None),  # a long poll
        (replace(NEW, received_s=3599.0), None),
        (replace(NEW, received_s=3600.0), "nothing was asked"),
        (replace(NEW, outside_s=59.9), None),
        (replace(NEW, outside_s=60.0, waits=True), "was not admitted within 60 s"),
    ],
)
def test_bke_5_what_ends_a_connection(quiet: Quiet, words: str | None) -> None:
    """BKE-5: silence where something is owed, for long; never slowness."""
    reason = overdue(quiet, LIMITS)
    assert (reason is None) if words is None else (reason is not None and words in reason)


def test_bke_6_who_makes_room() -> None:
    """BKE-6: the one that was silent longest, half a frame or not, and never one that waits for an answer or has not read its own."""
    quiet = {
        "working": NEW,
        "idle": replace(NEW, received_s=9.0),
        "half": replace(NEW, received_s=20.0, half_frame=True),
        "polling": replace(NEW, received_s=900.0, waits=True),
        "reading": replace(NEW, received_s=900.0, unsent=True),
        "stranger": replace(NEW, received_s=900.0, outside_s=4.0),
    }
    assert to_make_room(quiet.items(), LIMITS) == "half"
    del quiet["half"]
    assert to_make_room(quiet.items(), LIMITS) == "idle"
    del quiet["idle"]
    assert to_make_room(quiet.items(), LIMITS) is None
    assert to_make_room([], LIMITS) is None


def test_bke_6_strangers_make_room_first() -> None:
    """BKE-6: whoever had time to come in, and whoever is one of too many; those who are just coming in are let be."""
    limits = replace(LIMITS, connections=400)
    assert [stranger_makes_room(count, oldest_s, limits) for count, oldest_s in ((0, 0.0), (1, 4.9), (1, 5.0), (99, 4.9), (100, 0.0))] == [
        *(False, False),
        *(True, False, True),
    ]


def test_bke_4_polls_wait_in_bounds(bookie: Bookie) -> None:
    """BKE-4: in time, in all, and as far as whoever asks may wait."""
    bookie.ask(add(0))
    bookie.machine.polls_max, bookie.machine.poll_ms_max = 2, 5000
    waiting = [bookie.send(poll(0, timeout_ms=(1 << 63) - 1)) for _ in range(2)]
    assert bookie.machine.next_wake_ms() == bookie.now + 5000
    at_once = bookie.send(poll(0, timeout_ms=1000))
    assert at_once in bookie.sent and not any(tag in bookie.sent for tag in waiting)
    tag = object()
    bookie.machine.polls_max = 10
    (effect,) = bookie.machine.handle(tag, poll(0, timeout_ms=1000), bookie.now, may_wait=False)
    assert effect.response == bookie.sent[at_once]  # type: ignore[union-attr]
    assert bookie.sent[at_once].status is Status.OK


def test_bke_3_fences_on_the_last_of_the_disk(bookie: Bookie) -> None:
    """BKE-3, B-3: below the reserve everything is fenced, below the second one what is known here. Nothing is kept of what is refused."""
    bookie.ask(add(0))
    bookie.machine.read_only, bookie.machine.accept_recovery_adds = True, False
    assert bookie.ask(fence(ledger_id=77)).status is Status.NO_ENTRY
    bookie.machine.fence_unknown = False
    refused = bookie.ask(fence(ledger_id=78))
    assert refused.status is Status.IO_ERROR and bookie.storage.ledger(78) is None
    assert bookie.ask(fence()).status is Status.OK
    assert bookie.status(m.AddRequest(1, L, 1, add(1).master_key, add(1).body)) is Status.READ_ONLY
    bookie.machine.read_only = False
    assert bookie.status(add(1)) is Status.FENCED
    assert bookie.status(read(0)) is Status.OK
