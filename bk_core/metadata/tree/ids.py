"""New ids of ledgers, by what the layout of the ledgers allows (metadata.md 2.5)."""

from __future__ import annotations

from collections.abc import Callable

from bk_core.errors import MetadataError
from bk_core.metadata import paths
from bk_core.metadata.tree.nodes import Nodes

_HOB_NODES_MAX = 3


class LedgerIds:
    """The ids that nobody has had before. ``sequence`` returns the next number of a directory, None beyond 31 bits."""

    def __init__(self, nodes: Nodes, root: str, sequence: Callable[[str], int | None]) -> None:
        self._nodes, self._root, self._sequence = nodes, root, sequence

    def next_id(self, manager: str) -> int:
        """Return a new id for this ledger manager. Raises NoNodeError if the root is gone, MetadataError where no ids are left."""
        if manager == "flat":
            ledger_id = self._sequence(self._root)
        elif manager == "legacy":
            ledger_id = self._short_id()
        else:
            ledger_id = None if self._nodes.exists(f"{self._root}/idgen-long") else self._short_id()
            if ledger_id is None:
                return self._long_id()
        if ledger_id is None:
            raise MetadataError(f"the {manager} layout has no ledger ids left below 2^31-1")
        return ledger_id

    def _short_id(self) -> int | None:
        return self._sequence(f"{self._root}/idgen")

    def _long_id(self) -> int:
        parent = f"{self._root}/idgen-long"
        self._nodes.ensure(parent, for_everybody=True)  # as Apache does, whatever the rights on other nodes are
        while True:
            names = self._nodes.children(parent)
            high = paths.high_order(names)
            if high is None:
                high = 1
                self._nodes.ensure(f"{parent}/HOB-{high:010d}", for_everybody=True)
            low = self._sequence(f"{parent}/HOB-{high:010d}")
            if low is not None:
                self._drop_old_hobs(parent, names)
                return high << 32 | low
            self._nodes.ensure(f"{parent}/HOB-{high + 1:010d}", for_everybody=True)

    def _drop_old_hobs(self, parent: str, names: list[str]) -> None:
        for name in sorted(name for name in names if name.startswith("HOB-"))[:-_HOB_NODES_MAX]:
            try:
                self._nodes.remove(f"{parent}/{name}", 0)
            except MetadataError:
                return  # some nodes are left over, which does no harm
