"""`bk autorecovery` as two processes that are killed, and bookies that are lost for good: nothing is put back by an operator."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from bk_core.bookie.children import Child
from bk_core.client import BookKeeper
from bk_core.errors import BkError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.replication import eligible_fragments, open_tail_without
from tests.soak.cluster import SoakCluster

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
STALLED_S = 180.0  # of which a minute for ledgers that were created while the bookie died (RR-16)
UNKNOWN = 1 << 60
GRACE_S = 5.0
LOOK_S = 0.5


class NotReplicated(AssertionError):
    """Ledgers still name a bookie that was lost long ago."""


class AutoRecoveries:
    """The processes, and the wait for what they do. They reach everything directly; so only their own ends disturb them."""

    def __init__(self, cluster: SoakCluster, client: BookKeeper) -> None:
        self._cluster = cluster
        self._client = client
        self._count = 0
        self._running: list[Child] = []
        self._logs: list[Path] = []

    def start(self) -> None:
        for _ in range(PROCESSES):
            self._running.append(self._one())

    def _one(self) -> Child:
        self._count += 1
        name = f"autorecovery-{self._count}"
        command = [sys.executable, "-u", "-m", "bk_core.cli", "autorecovery", "--json", "--uri", self._cluster.uri]
        command += ["--grace", str(GRACE_S), "--check-every", "0s"]
        path_of_imports = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
        log = self._cluster.directory / f"{name}.log"
        self._logs.append(log)
        return Child(name, command, log, env={"PYTHONPATH": path_of_imports})

    def kill_one(self, rng: random.Random) -> str:
        """SIGKILL one in the midst of whatever it does, and start its successor. Return the name of the victim."""
        victim = self._running.pop(rng.randrange(PROCESSES))
        self._require(victim)
        victim.kill()
        self._running.append(self._one())
        return victim.name

    def _require(self, child: Child) -> None:
        if not child.running:
            raise AssertionError(f"{child.name} ended by itself; its output: {child.log.read_text()[-2000:]}")

    def await_replicated(self, bookie: str) -> float:
        """Wait until the bookie's registration has ended, no ledger needs it and no mark is left. Return the seconds that took. Raises
        NotReplicated if it comes no nearer for ``STALLED_S``."""
        began = moved = time.monotonic()
        best: int | None = None
        while left := self._left(bookie):
            if best is None or left < best:
                best, moved = left, time.monotonic()
            if time.monotonic() - moved > STALLED_S:
                raise NotReplicated(
                    f"{left} ledgers and marks are left since {STALLED_S:.0f} s, {bookie} was lost {moved - began:.0f} s before"
                )
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def _left(self, bookie: str) -> int:
        """Return the number of ledgers that are marked or need the bookie; more than ever while that cannot be asked."""
        try:
            view = self._client.bookies()
            if bookie in {*view.writable, *view.readonly}:
                return UNKNOWN
            store = self._client.store
            marked = set(store.underreplication().marked_ledgers())
            others = store.read_ledgers(ledger_id for ledger_id in self._client.list_ledgers() if ledger_id not in marked)
            return len(marked) + sum(_needs(metadata_codec.decode(stored.data), bookie) for _, stored in others if stored is not None)
        except BkError:
            return UNKNOWN

    def forget(self, bookie: str) -> None:
        """Delete the bookie's cookie, so that one with an empty disk may come under its name."""
        self._client.delete_cookie(bookie)

    def close(self) -> None:
        for child in self._running:
            child.kill()

    def ended(self) -> list[str]:
        """Tell of each that ended by itself."""
        return [f"{child.name} ended early; see {child.log}" for child in self._running if not child.running]

    def facts(self) -> dict[str, int]:
        """Count what they told, by kind of event, and the entries that they copied."""
        counts: Counter[str] = Counter()
        for log in self._logs:
            for line in log.read_text().splitlines():
                try:
                    event = json.loads(line)
                except ValueError:  # cut off by a kill, or a line of logging
                    continue
                counts[f"autorecovery_{event['event']}"] += 1
                counts["autorecovery_entries_copied"] += event["entries"]
        return dict(sorted(counts.items()))


def _needs(metadata: LedgerMetadata, bookie: str) -> bool:
    is_read = any(bookie in span.ensemble for span in eligible_fragments(metadata))  # a fragment without entries keeps its bookies
    return is_read or bool(open_tail_without(metadata, {one for one in metadata.last_fragment.ensemble if one != bookie}))
