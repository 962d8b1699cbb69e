"""The owners of ledgers and lists, as it really is, and what nobody may do to another's.

| id | what must hold | rules |
|---|---|---|
| I-O1 | a ledger is made, changed (fenced, closed) and deleted only by programs that began with its cluster | OWN-2, OWN-10 |
| I-O2 | a list is changed and deleted only by programs of its cluster, and names only its ledgers, unless a person said so | OWN-3, OWN-4 |
| I-O3 | a ledger is fenced and deleted for a log only if it carries the log's name, or was adopted | OWN-6, OWN-11 |
| I-O4 | a ledger of a log that is there is deleted only after its list condemned it | OWN-5, OWN-7, OWN-9, LOG-18 |
| I-O5 | an intent is forgotten only by its maker, or when its ledger is listed or gone for good | OWN-2, OWN-5 |
| I-O6 | the lists of a cluster are made in one place | OWN-8 |
| I-O7 | a list is changed only by who has read it, not by who has read one that was deleted | OWN-7 |
| I-O8 | a ledger of a log is made only after its cluster's own intent was noted under its number | OWN-5 |
| L-O1 | every program ends | |
| L-O2 | afterwards janitors and the search for orphans find every ledger of a log that nothing lists | OWN-9 |
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.log.codec import decode
from bk_core.protocol.log.ledger_list import LedgerList
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.owner_store import Node, Program

OWNER_INVARIANTS = ("I-O1", "I-O2", "I-O3", "I-O4", "I-O5", "I-O6", "I-O7", "I-O8", "L-O1", "L-O2")


class OwnerTruth:
    """``born``: custom metadata of every ledger there ever was, by cluster and number. ``there``: those that are, or will be back.

    ``found`` is the first breach: it is told after the step, because whoever does it might swallow an error.
    """

    def __init__(self, world: World, evaluated: Counter[str], chosen: str) -> None:
        self.world = world
        self.found: tuple[str, str] | None = None
        self.at: dict[str, str] = {}
        self.born: dict[tuple[str, int], dict[str, bytes]] = {}
        self.there: dict[tuple[str, int], None] = {}
        self.ever_listed: dict[tuple[str, int], None] = {}
        self.intended: dict[tuple[str, int], None] = {}  # ever
        self.lists: dict[str, LedgerList] = {}  # by path
        self.adopted = False
        self._evaluated = evaluated
        self._places: dict[str, str] = {}
        self._chosen = chosen
        self._away: dict[str, str] = {}

    def _expect(self, rule: str, good: bool, detail: str) -> None:
        self._evaluated[rule] += 1
        if not good and self.found is None:
            self.found = rule, detail

    # --- clusters ----------------------------------------------------------------------------------------------------------

    def take(self, root: str, gone: dict[str, Node]) -> None:
        """A ledger that is gone may come back: it still is somebody's."""
        self._away.setdefault(root, self.at.pop(root))

    def restore(self, root: str, nodes: dict[str, Node]) -> None:
        self.at[root] = self._away[root]

    # --- ledgers -----------------------------------------------------------------------------------------------------------

    def ledger_changed(self, who: Program | None, root: str, ledger_id: int, before: Node | None, after: Node | None) -> None:
        node = after or before
        assert node is not None
        key = node.cluster, ledger_id
        if before is None:
            self.born[key] = dict(metadata_codec.decode(node.data).custom)
            self.there[key] = None
        if after is None:
            self.there.pop(key, None)
        if who is None:
            return
        what = "makes" if before is None else "deletes" if after is None else "changes"
        self.world.note(f"{who.name} of {who.home} {what} ledger {ledger_id} of {node.cluster}")
        self._expect(
            "I-O1", node.cluster == who.home, f"{who.name}, which began with {who.home}, {what} ledger {ledger_id} of {node.cluster}"
        )
        custom = self.born[key]
        if before is not None and ledger_id not in who.made:
            log = custom.get("log", b"").decode()
            adopted = not log and any(ledger_id in one.adopted for one in self.lists.values())
            self._expect("I-O3", log == who.doing or adopted, f"{who.name} {what} ledger {ledger_id} of log {log!r} for log {who.doing!r}")
        if before is None:
            who.made[ledger_id] = None
            noted = key in self.intended or "logId" not in custom
            self._expect("I-O8", noted, f"{who.name} of {who.home} makes ledger {ledger_id}, of which {key[0]} has noted no intent")
        if after is None:
            self._check_deletion(who, key, custom)

    def _check_deletion(self, who: Program, key: tuple[str, int], custom: dict[str, bytes]) -> None:
        """I-O4."""
        for path, listed in self.lists.items():
            mine = listed.cluster == key[0] and path.endswith("/" + custom.get("log", b"").decode())
            if mine and custom.get("logId", b"").decode() == listed.log_id:
                self._expect(
                    "I-O4", key[1] in listed.condemned, f"{who.name} deletes ledger {key[1]} of {path}, which has not condemned it"
                )

    # --- lists, intents ------------------------------------------------------------------------------------------------------

    def node_changed(self, who: Program | None, path: str, before: Node | None, after: Node | None) -> None:
        if "/logs/" in path:
            self._list_changed(who, path, after)
        elif "/intents/" in path and path.rpartition("/")[2].isdecimal():
            if before is None and after is not None:
                self.intended[str(json.loads(after.data or b"{}").get("cluster", "")), int(path.rpartition("/")[2])] = None
            elif after is None and before is not None and who is not None:
                self._intent_forgotten(who, path, before.data)

    def _list_changed(self, who: Program | None, path: str, after: Node | None) -> None:
        was = self.lists.pop(path, None)
        listed = None if after is None else decode(after.data)
        if listed is not None:
            self.lists[path] = listed
        if who is None:
            return
        self.world.note(f"{who.name} of {who.home} {'deletes' if listed is None else 'makes' if was is None else 'changes'} {path}")
        if was is not None and listed is None:
            self.world.probes["a log was deleted"] += 1
        person = who.doing == "a person"
        self.adopted |= person
        whose = [one.cluster for one in (was, listed) if one is not None and one.cluster]
        foreign = [cluster for cluster in whose if cluster != who.home]
        self._expect("I-O2", person or not foreign, f"{who.name} of {who.home} changes {path} of {foreign}")
        if listed is None:
            return
        if was is not None:
            self._expect(
                "I-O7", was.log_id == listed.log_id, f"{who.name} writes the list of log {listed.log_id} over that of {was.log_id}"
            )
        known = _ledgers(was) if was is not None else set()
        for ledger_id in sorted(_ledgers(listed) - known):
            self.ever_listed[listed.cluster, ledger_id] = None
            self._expect("I-O2", (listed.cluster, ledger_id) in self.born, f"{path} of {listed.cluster} lists ledger {ledger_id}")
        if was is None and not self._chosen:
            place = self._places.setdefault(listed.cluster, path.rpartition("/logs/")[0])
            self._expect("I-O6", path.startswith(f"{place}/"), f"{path} is made, but {listed.cluster} has logs at {place}")

    def _intent_forgotten(self, who: Program, path: str, data: bytes) -> None:
        """A ledger that was intended and not made yet is nobody's loss: it is found as an orphan when it comes to be (OWN-9)."""
        ledger_id = int(path.rpartition("/")[2])
        key = str(json.loads(data).get("cluster", "")), ledger_id
        known = who.home == key[0] and (ledger_id in who.made or ledger_id in who.absent)
        good = known or key not in self.there or key in self.ever_listed
        good = good or any(ledger_id in _ledgers(one) for one in self.lists.values() if one.cluster in ("", key[0]))
        self._expect("I-O5", good, f"{who.name} of {who.home} forgets {path} of {key[0]}, though the ledger is there and not listed")

    # --- the end -------------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """L-O2."""
        if self.adopted:  # a person who was wrong leaves things that only a person can put right
            return
        for cluster, ledger_id in self.there:
            custom = self.born[cluster, ledger_id]
            if cluster not in self.at.values() or "logId" not in custom:
                continue
            listing = [path for path, one in self.lists.items() if one.cluster == cluster and ledger_id in _ledgers(one)]
            self._expect("L-O2", bool(listing), f"ledger {ledger_id} of {cluster} carries {custom}, and nothing lists it")
        self._expect("L-O1", True, "")


def _ledgers(listed: LedgerList) -> set[int]:
    return {segment.ledger_id for segment in listed.segments}
