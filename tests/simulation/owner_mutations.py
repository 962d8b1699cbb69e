"""Rules of identity broken on purpose; see mutations.py."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from bk_core.client import identity, repeating
from bk_core.client.log import intents, janitor, list_store, orphans
from bk_core.metadata.tree.cluster import ClusterAtRoot, LogRoot
from bk_core.protocol.log.identity import LOG_KEY, Claim, Standing
from bk_core.protocol.log.ledger_list import LedgerList
from tests.simulation.broken import always
from tests.simulation.mutation import Mutation

OWNERS: dict[str, Any] = {"owners": True, "programs": 5, "actions": 6}
ANEW = {**OWNERS, "fate": "anew", "later": 3}
SHARED = {**ANEW, "shared": True}


def _repeats_without_a_look(client: Any, name: str, listed: LedgerList, version: int, deadline: float) -> None:
    repeating.until_definite(lambda: client.store.write(list_store.log_path(name), list_store.encoded(name, listed), version), deadline)


def _all_that_are_intended(work: Any, log_id: str, before: Collection[int]) -> list[int]:
    return list(work.intents)


def _goes_its_own_way(self: LogRoot, writing: bool) -> str:
    self._decided = self._old if self._old_is_used() else self._own
    return self._decided


def _any_log_is_ours(client: Any, name: str, listed: LedgerList, here: str) -> LedgerList:
    return replace(listed, cluster=here)


def _whatever_is_there_is_ours(store: Any, path: str, data: bytes, deadline: float) -> bool:
    repeating.create_once(store, path, data, deadline)
    return True


OWNER_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "OWN-2 (gone)",
        "that a ledger is not there is believed of a cluster that is not there",
        ((ClusterAtRoot, "check", lambda self: None),),
        ("I-O5",),
        {**OWNERS, "fate": "away and back"},
    ),
    Mutation("OWN-3 (claim)", "every list is this cluster's", ((identity, "claim", always(Claim.OURS)),), ("I-O2",), SHARED),
    Mutation("OWN-3 (look)", "nobody looks whose a list is", ((list_store, "of_this_cluster", _any_log_is_ours),), ("I-O2",), SHARED),
    Mutation(
        "OWN-5 (number)",
        "an intent of that number is taken for one's own",
        ((intents, "create_once", _whatever_is_there_is_ours),),
        ("I-O8",),
        SHARED,
    ),
    Mutation(
        "OWN-5 (deletion)",
        "who deletes a log takes the ledgers of the log that was created again",
        ((janitor, "_intended", _all_that_are_intended),),
        ("I-O4",),
        {**OWNERS, "fate": "none"},
    ),
    Mutation(
        "OWN-6 (standing)",
        "a ledger is the log's whatever it carries",
        ((identity, "standing", always(Standing.NAMED)),),
        ("I-O3",),
        {**SHARED, "earlier": True},
    ),
    Mutation(
        "OWN-7 (list)",
        "a change of a list is repeated without a look at it",
        ((list_store, "compare_and_set_list", _repeats_without_a_look),),
        ("I-O7",),
        {**OWNERS, "fate": "none", "two_roots": False, "lost": 0.4},
    ),
    Mutation(
        "OWN-8 (writers)",
        "each writer decides by itself where logs lie",
        ((LogRoot, "_find", _goes_its_own_way),),
        ("I-O6",),
        {**OWNERS, "shared": False, "earlier": True},
    ),
    Mutation(
        "OWN-9 (orphans)",
        "every ledger that carries a log's name is an orphan",
        ((orphans, "is_orphan", lambda custom, log_root, traces: LOG_KEY in custom),),
        ("I-O4",),
        OWNERS,
    ),
    Mutation(
        "OWN-10 (before)",
        "nobody looks which cluster it is before a ledger is made, changed or deleted",
        ((ClusterAtRoot, "check_unchanged", lambda self: None),),
        ("I-O1",),
        ANEW,
    ),
)
