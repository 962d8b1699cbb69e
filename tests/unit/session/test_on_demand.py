"""The beginning and the end of a session on demand."""

from __future__ import annotations

from bk_core.protocol.session.on_demand import IDLE_NS, OnDemand


def test_a_session_is_kept_while_it_is_used_and_for_a_while_after() -> None:
    """SES-13."""
    state = OnDemand()
    assert state.began(0)
    state.open = True
    assert not state.began(5)
    state.ended(10)
    assert state.idle_in_ns(10 * IDLE_NS) == IDLE_NS  # the other call is still at work
    state.ended(10 * IDLE_NS)
    assert state.idle_in_ns(10 * IDLE_NS + 1) == IDLE_NS - 1
    assert not state.began(11 * IDLE_NS - 1)
    state.ended(11 * IDLE_NS - 1)
    assert state.idle_in_ns(11 * IDLE_NS) == IDLE_NS - 1
    assert state.idle_in_ns(12 * IDLE_NS) == 0
