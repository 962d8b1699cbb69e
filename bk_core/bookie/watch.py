"""Reports when the disk of a running local cluster gets full and when one of its processes ends."""

from __future__ import annotations

import shutil

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.protocol.bookie.room import RESERVE_BYTES


class ClusterWatch:
    """Reports each change once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._full = False
        self._ended: set[str] = set()

    def news(self) -> list[str]:
        """Return lines about the changes since the last call."""
        return [*self._of_disk(), *self._of_processes()]

    def _of_disk(self) -> list[str]:
        directory = self._cluster.directory
        free = shutil.disk_usage(directory).free
        was, self._full = self._full, free < RESERVE_BYTES
        if self._full == was:
            return []
        if not self._full:
            return [f"the disk of {directory} has room again"]
        return [
            f"the disk of {directory} is nearly full: {free >> 20} MiB are free. Bookies are read-only below {RESERVE_BYTES >> 20} MiB, "
            "and ZooKeeper ends when nothing is left: delete ledgers, or make room there"
        ]

    def _of_processes(self) -> list[str]:
        ended = set(self._cluster.ended())
        new, self._ended = sorted(ended - self._ended), ended
        return [f"{name} has ended" for name in new]
