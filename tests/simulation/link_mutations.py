"""Rules of links, sessions and clocks broken on purpose; see mutations.py."""

from __future__ import annotations

from typing import Any

from bk_core.client.log import list_store
from bk_core.net.link import BookieLink
from bk_core.protocol.ledger.read.unreachable import Unreachable
from bk_core.protocol.link import Attempts, FlowWindow, LinkHealth, Turns
from bk_core.protocol.log import ledger_list
from bk_core.protocol.session.suspicion import Suspicion
from tests.simulation.broken import always
from tests.simulation.broken_links import (
    admits_everything,
    all_for_the_first,
    as_the_clock_says,
    asks_its_host,
    asks_nobody,
    behind_its_own,
    counts_from_sending,
    gives_up_at_once,
    grows_by_what_was_alone,
    hears_nothing,
    last_comes_first,
    late_only_in_silence,
    lets_through,
    never_again,
    never_silent,
    peeks_at_last,
    repeats_for_ever,
    stays_where_it_was,
    suspects_nobody,
)
from tests.simulation.mutation import Mutation

LINKS: dict[str, Any] = {"links": True}
THIN = {**LINKS, "rate": 100_000}

LOGS: dict[str, Any] = {"log": True, "append_every_ms": 4, "storm_ms": 300}

LINK_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("LINK-1", "a request times out although bytes come", ((LinkHealth, "is_silent", counts_from_sending),), ("I-K1",), THIN),
    Mutation(
        "LINK-2",
        "a request that is passed over is waited for as long as others are answered",
        ((LinkHealth, "is_late", late_only_in_silence),),
        ("I-K2",),
        {**LINKS, "troubles": (0.03, 0.0, 0.0)},
    ),
    Mutation("LINK-3", "a silent connection is kept", ((LinkHealth, "is_silent", never_silent),), ("I-K4", "I-K11"), LINKS),
    Mutation(
        "LINK-3 (adds)",
        "adds that nobody answers are no silence",
        ((LinkHealth, "adds_are_silent", always(False)),),
        ("I-K4", "I-K11"),
        {**LINKS, "adds": True},
    ),
    Mutation(
        "LINK-4",
        "other connections of a silent bookie are kept",
        ((LinkHealth, "is_doubtful", always(False)),),
        ("I-K4",),
        {**LINKS, "silent": 0.06},
    ),
    Mutation(
        "LINK-4 (too many)",
        "connections of a silent bookie that live are dropped",
        ((LinkHealth, "is_doubtful", always(True)),),
        ("I-K4",),
        {**LINKS, "silent": 0.06, "troubles": (0.03, 0.0, 0.0)},
    ),
    Mutation(
        "LINK-4 (moved)",
        "connections to where a bookie was are kept",
        ((BookieLink, "moved", stays_where_it_was),),
        ("I-K4",),
        {**LINKS, "move": 0.04},
    ),
    Mutation(
        "LINK-5",
        "everything is asked for at once",
        ((FlowWindow, "admits", admits_everything),),
        ("I-K5",),
        {**THIN, "pullers": 12, "depth": 4},
    ),
    Mutation(
        "LINK-5 (growth)",
        "the window grows by answers that came alone",
        ((FlowWindow, "took", grows_by_what_was_alone),),
        ("I-K5",),
        {**THIN, "depth": 4},
    ),
    Mutation(
        "LINK-6",
        "who came last has the next turn",
        ((Turns, "pop", last_comes_first), (Turns, "peek", peeks_at_last)),
        ("I-K6",),
        {**THIN, "pullers": 12, "depth": 4},
    ),
    Mutation(
        "LINK-6 (lowest)",
        "of one reader what came first goes first",
        ((Turns, "push", behind_its_own),),
        ("I-K6",),
        {**THIN, "pullers": 6, "depth": 4},
    ),
    Mutation(
        "LINK-7",
        "what was lost with a connection is not asked for again",
        ((BookieLink, "_is_again", gives_up_at_once),),
        ("I-K7",),
        {**LINKS, "cut": 0.2},
    ),
    Mutation(
        "LINK-7 (for ever)",
        "what was lost with a connection is asked for again whatever it is and however often",
        ((BookieLink, "_is_again", repeats_for_ever),),
        ("I-K7",),
        {**LINKS, "cut": 0.4, "adds": True, "pullers": 6},
    ),
    Mutation(
        "LINK-8",
        "the first address of a name has all of the time",
        ((Attempts, "next", all_for_the_first),),
        ("I-K1", "I-K11"),
        {**LINKS, "two_addresses": True},
    ),
    Mutation(
        "LINK-9",
        "what cannot be understood is no end of a connection",
        ((BookieLink, "on_io", lets_through),),
        ("crash",),
        {**LINKS, "troubles": (0.0, 0.02, 0.0)},
    ),
    Mutation(
        "RD-13",
        "a read of which no replica can be reached fails at once",
        ((Unreachable, "failed", never_again),),
        ("I-K12",),
        {**LINKS, "hosts": 3, "crash": 0.2, "readers": 2},
    ),
    Mutation(
        "SES-1",
        "a bookie whose connection broke is chosen like others",
        ((Suspicion, "broke", suspects_nobody),),
        ("I-K8",),
        {**LINKS, "cut": 0.2, "adds": True},
    ),
    Mutation("SES-2", "answers of a suspect do not end the suspicion", ((Suspicion, "noted", hears_nothing),), ("I-K9",), LINKS),
    Mutation("SES-3", "a suspect is never asked whether it is back", ((Suspicion, "due", asks_nobody),), ("I-K9",), LINKS),
    Mutation("JAN-1", "the clock of a host tells how old a commit is", ((list_store, "store_now_ms", asks_its_host),), ("I-L10",), LOGS),
    Mutation("JAN-2", "commit times may go back", ((ledger_list, "commit_time", as_the_clock_says),), ("I-L10",), LOGS),
)
