"""``python -m tests.checkpoints.figures.history JSON``: the files that a query has left after many batches, without Spark.

It goes on with a store where a query of ``session.py`` has begun: batches get the texts of that query's batches, with numbers of their own,
so that Spark can go on behind the last one. A store that is empty gets texts as long as Spark's. As Spark does with its defaults, all but
the last hundred batches are deleted as it goes. With ``state`` each batch has a delta for each partition. Every hundred batches, which
is about how often Spark tends its state, there is a snapshot for each, and what is older than the last hundred batches goes.

Many changes are under way at once. Prints a line of JSON at each number of ``looks``, and at the end waits for its
input to end, or to be killed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import bk_core
from bk_core.client.files.nodes import data_nodes
from bk_core.client.files.opening import log_records
from bk_core.client.files.store import FileStore
from bk_core.client.log.list_store import log_path
from bk_core.errors import LogDataLossError, NoSuchLedgerError
from tests.faults.stores import ledgers_of

RETAINED = 100  # spark.sql.streaming.minBatchesToRetain
TENDED = 100  # batches from one maintenance of the state to the next
THREADS = 64
IN_FLIGHT = 128  # fewer than what Spark keeps, so that nothing is deleted before it is there
WAIT_S = 120.0
DELTA_BYTES, SNAPSHOT_BYTES = 1200, 200_000  # the second is too large for a record, so it goes to a data ledger
SETTINGS_BYTES = 1050  # that an offset of Spark 4.3 names, so that a batch runs again as it did
_OFFSET = re.compile(r'\{"offset":(\d+),"timestamp":(\d+)\}')


@dataclass
class Task:
    """``batches``: the number of the first one that there is not to be. ``state``: partitions with state. ``cluster``: the directory of its
    bookies, whose size is looked at."""

    uri: str
    name: str
    batches: int
    looks: list[int] = field(default_factory=list)
    state: int = 0
    cluster: str = ""


class Writer:
    """Changes a store, so many changes at once. One is begun only when all but the last ``IN_FLIGHT`` before it are done."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS)
        self._under_way: deque[Future[object]] = deque()

    def put(self, path: str, data: bytes) -> None:
        self._begin(self._store.put, path, data)

    def delete(self, path: str) -> None:
        self._begin(self._store.delete, path)

    def _begin(self, change: Callable[..., object], *arguments: object) -> None:
        while len(self._under_way) >= IN_FLIGHT:
            self._under_way.popleft().result(WAIT_S)
        self._under_way.append(self._threads.submit(change, *arguments))

    def drain(self) -> None:
        while self._under_way:
            self._under_way.popleft().result(WAIT_S)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()


@dataclass(frozen=True)
class Template:
    """The texts of a batch."""

    offsets: str
    commits: str
    rows: int
    advance_ms: int

    @classmethod
    def of(cls, store: FileStore) -> Template:
        """From the last two batches, which tell how far the source goes in one."""
        if not store.exists("/commits"):
            return cls(
                'v1\n{"conf":"%s"}\n{"offset":0,"timestamp":0}' % ("x" * SETTINGS_BYTES), 'v1\n{"nextBatchWatermarkMs":0}', 100, 1000
            )
        last = max(int(status.name) for status in store.listing("/commits"))
        texts = [store.read(f"/offsets/{batch}").decode() for batch in (last - 1, last)]
        (rows, at_ms), (more_rows, later_ms) = (map(int, _OFFSET.findall(text)[0]) for text in texts)
        return cls(texts[1], store.read(f"/commits/{last}").decode(), more_rows - rows, later_ms - at_ms)

    def batch(self, number: int) -> tuple[bytes, bytes]:
        offset = f'{{"offset":{(number + 1) * self.rows},"timestamp":{(number + 1) * self.advance_ms}}}'
        return _OFFSET.sub(offset, self.offsets).encode(), self.commits.encode()


def files_of(number: int, template: Template, state: int) -> Iterator[tuple[str, bytes]]:
    """The files that batch ``number`` adds, in Spark's order."""
    offsets, commits = template.batch(number)
    yield f"/offsets/{number}", offsets
    for partition in range(state):
        yield f"/state/0/{partition}/{number + 1}.delta", os.urandom(DELTA_BYTES)
        if number % TENDED == TENDED - 1:
            yield f"/state/0/{partition}/{number + 1}.snapshot", os.urandom(SNAPSHOT_BYTES)
    yield f"/commits/{number}", commits


def gone_after(number: int, state: int) -> Iterator[str]:
    """The files that are deleted once batch ``number`` is done. Of the state a snapshot stays from which the oldest version is made."""
    if number >= RETAINED:
        yield f"/offsets/{number - RETAINED}"
        yield f"/commits/{number - RETAINED}"
    if number % TENDED == TENDED - 1 and number + 1 >= RETAINED + TENDED:
        oldest = number + 1 - RETAINED - TENDED
        for partition in range(state):
            for version in range(max(1, oldest), oldest + TENDED):
                yield f"/state/0/{partition}/{version}.delta"
            if oldest > 0:
                yield f"/state/0/{partition}/{oldest}.snapshot"


def _record_sizes(client: Any, log: str) -> list[int]:
    """Return the sizes of the records in a log whose owner may trim it meanwhile; then it is read once more."""
    while True:
        try:
            return [len(record) for record, _ in log_records(client, log, b"")]
        except LogDataLossError:
            continue


def look(client: Any, store: FileStore, number: int, uri: str, cluster: str) -> dict[str, Any]:
    """Count the store now: ledgers and bytes of the log and of the data, nodes of the metadata store, bytes on the disks of the bookies."""
    there = list(files_below(store, "/"))
    data = {node.ledger_id: 0 for node in data_nodes(client, store.log_name)}
    for path in there:
        for extent in store.content(path).extents:  # the ledger that is being filled: a snapshot is an entry of it
            data[extent.ledger_id] = max(data.get(extent.ledger_id, 0), (extent.last_entry_id + 1) * SNAPSHOT_BYTES)
    for ledger_id in list(data):
        try:
            data[ledger_id] = client.ledger_metadata(ledger_id).length or data[ledger_id]
        except NoSuchLedgerError:  # dropped a moment ago
            del data[ledger_id]
    logs = ledgers_of(client, store.log_name) - set(data)
    sizes = _record_sizes(client, store.log_name)
    return {
        "batches": number,
        "logLedgers": len(logs),
        "records": len(sizes),
        "logBytes": sum(sizes),
        "dataLedgers": len(data),
        "dataBytes": sum(data.values()),
        "nodes": nodes_in_zookeeper(uri),
        "listBytes": len(client.store.read(log_path(store.log_name)).data),
        "files": len(there),
        "diskBytes": disk_bytes(Path(cluster)) if cluster else 0,
    }


def files_below(store: FileStore, path: str) -> Iterator[str]:
    for status in store.listing(path):
        if status.is_directory:
            yield from files_below(store, status.path)
        else:
            yield status.path


def nodes_in_zookeeper(uri: str) -> int:
    """All that it has, its own and the bookies' included."""
    host, _, port = uri.partition("://")[2].partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(partial(connection.recv, 4096), b""))
    (count,) = re.findall(rb"Node count: (\d+)", answer)
    return int(count)


def disk_bytes(directory: Path) -> int:
    """Return the bytes that the directories of the bookies take of the disk. Files that go meanwhile count for nothing."""
    total = 0
    for path in directory.glob("bookie-*/**/*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def write(client: Any, store: FileStore, task: Task) -> None:
    """From the batch behind the last one on."""
    template = Template.of(store)
    begun = 1 + max((int(status.name) for status in store.listing("/commits")), default=-1) if store.exists("/commits") else 0
    with Writer(store) as writer:
        for number in range(begun, task.batches):
            for path, data in files_of(number, template, task.state):
                writer.put(path, data)
            for path in gone_after(number, task.state):
                writer.delete(path)
            if number + 1 in task.looks:
                writer.drain()
                print(json.dumps(look(client, store, number + 1, task.uri, task.cluster)), flush=True)
        writer.drain()


def main(task: Task) -> None:
    with bk_core.connect(task.uri) as client, FileStore.open(client, task.name) as store:
        write(client, store, task)
        print(json.dumps({"done": task.batches}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
