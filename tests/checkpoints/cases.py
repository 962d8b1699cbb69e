"""The table: what a query does, where its state lies, where its rows come from and go."""

from __future__ import annotations

from dataclasses import dataclass, field

STATEFUL = ("aggregation", "dropDuplicates", "dropDuplicatesWithinWatermark", "stream-stream join")
BUILT_IN = ("hdfs", "rocksdb", "rocksdb changelog")
ASYNC = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "300"}


@dataclass(frozen=True)
class Case:
    """``exactly``: every row once; else at least once, which is all that Spark promises. ``same``: as undisturbed."""

    kind: str
    store: str = ""
    source: str = "rate-micro-batch"
    sink: str = "batches"
    options: dict[str, str] = field(default_factory=dict, hash=False)
    exactly: bool = True
    same: bool = True
    quick: bool = False

    @property
    def name(self) -> str:
        parts = [self.kind, self.store, f"{self.source} to {self.sink}", "async progress" if self.options else ""]
        return ", ".join(filter(None, parts))

    @property
    def steady(self) -> bool:
        """True if a query that was restarted has the same batches as an undisturbed one. Not from files: a restart after Spark has noted a
        batch's files and before it has noted the batch puts them into the next one.
        """
        return self.source != "files"

    @property
    def endless(self) -> bool:
        return self.source.startswith("rate")


def cases() -> list[Case]:
    found = []
    for kind in STATEFUL:
        for store in BUILT_IN:
            found.append(Case(kind, store, quick=(kind, store) == ("dropDuplicates", "rocksdb changelog")))
    found += [
        Case("transformWithState", "rocksdb"),
        Case("transformWithState", "rocksdb changelog", sink="log"),
        Case("transformWithStateInPandas", "rocksdb"),
        Case("transformWithStateInPandas", "rocksdb changelog"),
        Case("aggregation", "rocksdb changelog v2"),
        Case("stream-stream join", "rocksdb changelog v2"),
        Case("aggregation", "hdfs", source="log", sink="log"),
        Case("dropDuplicates without watermark", "rocksdb", source="files", sink="parquet"),
        Case("dropDuplicates without watermark", "hdfs", source="files", sink="parquet"),
        Case("plain", source="files", sink="parquet"),
        Case("plain", source="log", sink="log"),
        Case("plain", sink="log"),
        Case("plain", source="rate", same=False),
        Case("plain", sink="appends", options=ASYNC, exactly=False),
    ]
    return found
