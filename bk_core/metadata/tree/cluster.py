"""The identity of the cluster at the ledgers root, and the place of its logs (OWN-1, OWN-2, OWN-8)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from bk_core.errors import (
    ClusterChangedError,
    ClusterExistsError,
    MetadataError,
    MetadataFormatError,
    NoClusterError,
    NodeExistsError,
    NoNodeError,
)
from bk_core.metadata import paths
from bk_core.metadata.store import BY_ROOT, Versioned, changed_cluster
from bk_core.metadata.tree.names import ZOOKEEPER, Names
from bk_core.metadata.tree.nodes import Nodes
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.log import codec
from bk_core.protocol.log.identity import Claim, Evidence, claim, ledgers_to_look_at, standing
from bk_core.protocol.log.stored_json import loads

_LOOKED_AT_MAX = 200  # nodes, in the search for another cluster that the user may have meant
_TOLD_MAX = 5


class Ledgers(Protocol):
    """The part of the store that tells whose a log is."""

    def read_ledger(self, ledger_id: int) -> Versioned: ...
    def cluster_id(self) -> str: ...


class ClusterAtRoot:
    """The identity of a cluster: ``cluster_id`` and ``check`` are those of MetadataStore."""

    def __init__(self, nodes: Nodes, root: str, place: str, names: Names = ZOOKEEPER, others: Sequence[Names] = ()) -> None:
        """``place`` names the servers, for messages; ``others`` are the names of other layouts that clusters of these servers may have."""
        self._nodes = nodes
        self._root = root
        self._place = place
        self._names = names
        self._kinds = (names, *others)
        self.has_changed = False
        self._first: str | None = None
        self._had_layout = False

    @property
    def first(self) -> str:
        """``known_cluster`` as MetadataStore says."""
        return self._first or ""

    def cluster_id(self) -> str:
        return self._checked(self._identity(self._root, self._names))

    def questions(self) -> list[tuple[str, str]]:
        """Return the requests that tell which cluster this is, as (operation, path). One round trip is enough unless it is an old cluster
        that we do not know."""
        by_root = self._first is not None and self._first.startswith(BY_ROOT)
        more = [("exists", f"{self._root}/{self._names.layout}"), ("exists", self._root)] if by_root else []
        return [("get", f"{self._root}/{self._names.instance_id}"), *more]

    def cluster_id_of(self, answers: Sequence[Any]) -> str:
        """Return ``cluster_id`` by the answers to ``questions``, each a value or an error."""
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                raise answer
        named, *by_root = answers
        stored = "" if isinstance(named, Exception) else _text(named.data)
        if stored or not by_root:
            return self._checked(stored) if stored else self.cluster_id()
        layout, root = by_root
        return self._checked(None if layout is None or root is None else f"{BY_ROOT}{root.created:x}")

    def _checked(self, found: str | None) -> str:
        if found is None:
            raise NoClusterError(self._what_is_there())
        self._first = self._first or found
        if found != self._first:
            self.has_changed = True
            raise ClusterChangedError(changed_cluster(self._root, self._first, found))
        return found

    def check_unchanged(self) -> None:
        """Check, before a ledger is made, changed or deleted, that the cluster is the same (OWN-10). Ids and versions begin anew in another
        cluster, so those that this client knows from before may be somebody else's there. This costs one read, and none before this client
        first asked which cluster this is."""
        if self._first is not None:
            self.cluster_id()

    def check(self) -> None:
        self.cluster_id()
        if self._nodes.exists(f"{self._root}/{self._names.layout}"):
            self._had_layout = True
        elif self._had_layout:
            lost = f"the cluster at {self._root} has lost its {self._names.layout}"
            raise NoClusterError(f"{lost}; restore the metadata store before anything else")

    def check_free(self) -> None:
        """Raise ClusterExistsError if a new cluster cannot be made here (OWN-13)."""
        if self._nodes.exists(self._root):
            found = self._any_identity(self._root)
            what = "it is no cluster, but not empty ground either" if found is None else f"it is the cluster {found}"
            raise ClusterExistsError(f"{self._root} exists already: {what}; choose another path")
        for root in paths.around(self._root):
            found = self._any_identity(root)
            if found is not None:
                message = f"{self._root} would lie within the cluster {found} at {root}, whose bookies collect what is in it as garbage"
                raise ClusterExistsError(f"{message}; choose a path beside it")

    def near(self, cluster_id: str) -> str | None:
        found = clusters_near(self._nodes, self._root, self._kinds)
        return next((root for root in found if self._any_identity(root) == cluster_id), None)

    def _any_identity(self, root: str) -> str | None:
        """Return the identity of the cluster at ``root``, whichever layout it has."""
        return next((found for names in self._kinds if (found := self._identity(root, names)) is not None), None)

    def _identity(self, root: str, names: Names) -> str | None:
        """Return INSTANCEID or, where there is a LAYOUT without one, the transaction that made the root, because old clusters never got an
        INSTANCEID."""
        try:
            stored = _text(self._nodes.get(f"{root}/{names.instance_id}").data)
        except NoNodeError:
            stored = ""
        if stored:
            return stored
        created = self._nodes.created(root) if self._nodes.exists(f"{root}/{names.layout}") else None
        return None if created is None else f"{BY_ROOT}{created:x}"

    def _what_is_there(self) -> str:
        here = "exists, but has neither" if self._nodes.exists(self._root) else "does not exist, so there is no"
        text = f"there is no cluster at {self._root} of {self._place}: {self._root} {here} {self._names.layout} "
        text += f"nor {self._names.instance_id}" if here.startswith("exists") else "at it"
        before = "" if self._first is None else f"; it was cluster {self._first} before: the metadata store was emptied, or is another one"
        found = list(clusters_near(self._nodes, self._root, self._kinds))
        if found:
            nearest = sorted(found, key=lambda root: -difflib.SequenceMatcher(None, root, self._root).ratio())[:_TOLD_MAX]
            return f"{text}{before}. There is one at {' and at '.join(nearest)}: look at the path of the URI"
        lost = "" if before else " If there was one, the store has lost it: restore it from a backup, and make no other one."
        return f"{text}{before}. No other cluster was found there: look at the address, or make one: `bk local` or `bk cluster init`.{lost}"


def _text(data: bytes | None) -> str:
    return (data or b"").decode("ascii", "replace").strip()


def clusters_near(nodes: Nodes, root: str, kinds: Sequence[Names] = (ZOOKEEPER,)) -> Iterator[str]:
    """Yield the roots of clusters below ``root``, beside and above it, and two levels below those, but never ``root``. Looks at 200 nodes
    at most."""
    left = _LOOKED_AT_MAX
    above = [root[: i or 1] for i in range(len(root) - 1, -1, -1) if root[i] == "/"]
    wanted, seen = [(root, 1), *((path, 2) for path in above)], {root}
    while wanted and left:
        path, depth = wanted.pop(0)
        for name in nodes.children(path):
            child = f"{path.rstrip('/')}/{name}"
            if child in seen or not left:
                continue
            seen.add(child)
            left -= 1
            if any(nodes.exists(f"{child}/{name}") for names in kinds for name in (names.layout, names.instance_id)):
                yield child
            elif depth > 1 and child != "/zookeeper":
                wanted.append((child, depth - 1))


class LogRoot:
    """The place of a cluster's logs (OWN-8). Its own node, ``<ledgers root>-logs``, tells if that node or the old place ``bk-logs`` is
    used.

    The first process that writes about logs makes the node once; that is the whole decision. Before it is made, readers look where a writer
    would write.
    """

    def __init__(self, nodes: Nodes, ledgers: Ledgers, chosen: str | None, own: str, old: str | None) -> None:
        """``old`` is None where no older program can have kept logs."""
        self._nodes = nodes
        self._ledgers = ledgers
        self._own = own
        self._old = old
        self._chosen = self._decided = chosen
        self._old_was_used = False

    def find(self, *, writing: bool = False) -> str:
        """Return the place. Several threads may look at the same time, without a lock: the node decides, and all of them find the same."""
        return self._decided or self._find(writing)

    def _find(self, writing: bool) -> str:
        said = self._said()
        if said is None:
            if not (self._old_was_used and not writing):  # a reader looks at the old logs once, not at every read
                self._old_was_used = self._old_is_used()
            found = self._old if self._old is not None and self._old_was_used else self._own
            if not writing:
                return found
            try:
                self._nodes.create_with_parents(self._own, b"" if found == self._own else json.dumps({"logRoot": found}).encode())
                said = found
            except NodeExistsError:  # somebody else was faster, or it was this call's first try
                said = self._said() or self._own
        self._decided = said
        return said

    def _said(self) -> str | None:
        try:
            data = self._nodes.get(self._own).data
            return paths.check_root(str(loads(data)["logRoot"]), "log root") if data else self._own
        except NoNodeError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataFormatError(f"{self._own} does not tell where the logs of its cluster lie: {error}") from None

    def _old_is_used(self) -> bool:
        """Return True if an older program has kept logs of this very cluster at the old place, which clusters shared."""
        names = self._nodes.children(f"{self._old}/logs") if self._old is not None else []
        here = self._ledgers.cluster_id() if names else ""
        return any(self._claim(name, here) is not Claim.FOREIGN for name in names)

    def others(self) -> tuple[str, ...] | None:
        """Return None unless the root was chosen by hand and does not exist; then return the roots of logs beside it and beside the ledgers
        root."""
        if self._chosen is None or self._nodes.exists(self._chosen):
            return None
        above = sorted({root.rpartition("/")[0] or "/" for root in (self._chosen, self._own)})
        beside = [f"{path.rstrip('/')}/{name}" for path in above for name in self._nodes.children(path)]
        return tuple(root for root in beside[:_LOOKED_AT_MAX] if self._nodes.exists(f"{root}/logs"))

    def elsewhere(self, name: str) -> str | None:
        """Return the old place if there is a log of this name that may be this cluster's although the cluster does not keep its
        logs there."""
        if self._old is None or self._decided != self._own or not self._nodes.exists(f"{self._old}/logs/{name}"):
            return None
        return None if self._claim(name, self._ledgers.cluster_id()) is Claim.FOREIGN else self._old

    def _claim(self, name: str, here: str) -> Claim:
        try:
            listed = codec.decode(self._nodes.get(f"{self._old}/logs/{name}").data)
        except NoNodeError:
            return Claim.FOREIGN
        except MetadataFormatError:
            return Claim.UNKNOWN
        evidence = Evidence()
        if not listed.cluster:
            for ledger_id in ledgers_to_look_at(listed):
                evidence = evidence.with_ledger(standing(self._custom(ledger_id), name, listed.log_id))
        return claim(listed, here, evidence)

    def _custom(self, ledger_id: int) -> dict[str, bytes] | None:
        try:
            return dict(metadata_codec.decode(self._ledgers.read_ledger(ledger_id).data).custom)
        except NoNodeError:
            return None
        except MetadataError:
            return {}
