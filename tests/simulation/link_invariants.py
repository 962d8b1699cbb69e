"""The invariants of links and sessions, whatever the network does: one function per invariant, called four times a second (virtual).

| id | function | rules |
|---|---|---|
| I-K1 | what_moves_is_not_given_up | LINK-1, LINK-3 |
| I-K2 | what_is_passed_over_is_given_up | LINK-2 |
| I-K3 | each_request_is_answered_once_and_right | SM-3, LINK-9 |
| I-K4 | what_is_silent_or_elsewhere_is_dropped | LINK-3, LINK-4 |
| I-K5 | what_is_under_way_is_bounded | LINK-5 |
| I-K6 | readers_have_turns | LINK-6 |
| I-K7 | lost_requests_are_sent_again_and_not_for_ever | LINK-7, LINK-8 |
| I-K8 | suspects_are_not_chosen_while_there_are_others | SES-1 |
| I-K9 | suspects_that_are_well_are_chosen_again | SES-2, SES-3 |
| I-K10 | little_is_moved_twice | LINK-1, LINK-5 |
| I-K11 | everything_ends | LINK-1, LINK-3 |
| I-K12 | who_cannot_be_reached_is_asked_again | RD-13 |

What is only known at the moment when it happens is found there and told here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.protocol.link import FIRST_WINDOW_BYTES
from bk_core.protocol.link.flow import ENTRY_BYTES_UNKNOWN
from tests.simulation.link_session import QUARANTINE_S
from tests.simulation.links import TIMEOUT_NS
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.link_swarm import LinkPlay

Finding = str | None
Check = Callable[["LinkPlay"], Finding]
SLACK_NS = 1_500 * MS
BACK_NS = int(QUARANTINE_S * 1e9) + 4 * TIMEOUT_NS + 2 * SLACK_NS  # asked every 5 s, and each question may wait to be connected


@dataclass(frozen=True, slots=True)
class LinkInvariant:
    rule: str
    check: Check


LINK_INVARIANTS: list[LinkInvariant] = []


def link_invariant(rule: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LINK_INVARIANTS.append(LinkInvariant(rule, check))
        return check

    return register


@link_invariant("I-K1")
def what_moves_is_not_given_up(run: LinkPlay) -> Finding:
    return run.found("I-K1")


@link_invariant("I-K2")
def what_is_passed_over_is_given_up(run: LinkPlay) -> Finding:
    """Something was answered on its connection that was sent a whole timeout after it."""
    for link in run.network.links:
        if link.connection is None:
            continue
        latest = run.answered_ns(link.connection)
        for asked in run.outstanding(link):
            if latest - asked.sent_ns > TIMEOUT_NS + SLACK_NS:
                return f"{asked} is still waited for; what was sent {(latest - asked.sent_ns) / MS:.0f} ms after it is answered"
    return run.found("I-K2")


@link_invariant("I-K3")
def each_request_is_answered_once_and_right(run: LinkPlay) -> Finding:
    return run.found("I-K3")


@link_invariant("I-K4")
def what_is_silent_or_elsewhere_is_dropped(run: LinkPlay) -> Finding:
    now = run.world.now
    for link in run.network.links:
        sock = link.connection
        if sock is None:
            continue
        sent = [asked.sent_ns for asked in run.outstanding(link)]
        sent += [at for adder in run.adders for at in [adder.waits_since(link)] if at is not None]
        quiet_ns = now - max(sock.heard_ns, sock.moved_ns, min(sent, default=now))
        if quiet_ns > TIMEOUT_NS + SLACK_NS:
            return (
                f"the connection to {link.bookie} is kept though it has been silent for {quiet_ns / MS:.0f} ms with something outstanding"
            )
        told_ns = run.told_ns[link.bookie] if link.bookie in run.store.registered else now
        if sock.port != run.hosts[link.bookie].port and now - max(told_ns, run.store.out_until_ns) > 2 * SLACK_NS:
            return f"the connection to {link.bookie} leads to where it was"
    return run.found("I-K4")


@link_invariant("I-K5")
def what_is_under_way_is_bounded(run: LinkPlay) -> Finding:
    """Judge the answers to bulk reads under way: what comes in about a second, or the first window, in entries whose size was not known. An
    answer without an entry is quick on a thin link too, and may have doubled that window once; those behind it are not quick."""
    first = FIRST_WINDOW_BYTES * max(ENTRY_BYTES_UNKNOWN, run.largest_bytes) // ENTRY_BYTES_UNKNOWN
    for link in run.network.links:
        sock = link.connection
        if sock is not None and sock.back is not None:
            bound = first * (2 if sock in run.brought_nothing else 1) + 2 * run.largest_bytes + 3 * sock.back.line.rate
            if sock.back.queued > bound:
                return f"{sock.back.queued} bytes are under way from {link.bookie}, at {sock.back.line.rate} a second"
    return None


@link_invariant("I-K6")
def readers_have_turns(run: LinkPlay) -> Finding:
    return run.found("I-K6")


@link_invariant("I-K7")
def lost_requests_are_sent_again_and_not_for_ever(run: LinkPlay) -> Finding:
    return run.found("I-K7")


@link_invariant("I-K8")
def suspects_are_not_chosen_while_there_are_others(run: LinkPlay) -> Finding:
    return run.found("I-K8")


@link_invariant("I-K9")
def suspects_that_are_well_are_chosen_again(run: LinkPlay) -> Finding:
    now = run.world.now
    for session in run.sessions:
        for bookie in sorted(session.suspects):
            since = max(run.suspect_ns.get((session.name, bookie), now), run.hosts[bookie].bad_ns, run.told_ns.get(bookie, now))
            if run.hosts[bookie].is_well and now - max(since, run.store.out_until_ns) > BACK_NS:
                return f"{bookie} has been well for {(now - since) / MS:.0f} ms, and {session.name} still does without it"
    return None


@link_invariant("I-K10")
def little_is_moved_twice(run: LinkPlay) -> Finding:
    """Judge a run that is over, and whose network was thin and nothing else. A machine may ask a second replica while the first one's
    connection waits for a thin line that others use (RD-4)."""
    if run.readers or not (run.over and run.is_mild and run.useful_bytes > 200_000):
        return None
    moved = sum(host.back.carried for host in run.hosts.values())
    if moved > run.useful_bytes * 1.1 + 50_000:
        return f"{moved} bytes were moved for {run.useful_bytes}"
    return None


@link_invariant("I-K11")
def everything_ends(run: LinkPlay) -> Finding:
    if not run.over:
        return None
    unanswered = [asked for asked in run.asked if not asked.answers]
    if unanswered:
        return f"{len(unanswered)} requests were never answered, the first is {unanswered[0]}"
    unread = [one.name for one in [*run.pullers, *run.readers] if not one.done]
    if unread:
        return f"{unread} never read everything"
    for adder in run.adders:
        if any(adder.waits_since(link) is not None for link in run.network.links):
            return f"{adder.name} never heard of some of its adds"
    return None


@link_invariant("I-K12")
def who_cannot_be_reached_is_asked_again(run: LinkPlay) -> Finding:
    """RD-13: found where a read fails, by how long nothing had been read."""
    return run.found("I-K12")
