"""Sessions with ZooKeeper, which has a limit for each host: read tasks open none, and a write that gets none says why."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from bk_spark import clients
from bk_spark.datasource import batch_reader, schema_of
from bk_spark.options.table import parse_options

pytestmark = pytest.mark.spark


class Gate:
    """A ZooKeeper behind a port of its own, which closes every connection at once beyond ``most`` at a time, as ZooKeeper does beyond
    maxClientCnxns."""

    def __init__(self, target: tuple[str, int], most: int) -> None:
        self._target = target
        self._most = most
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.accepted = 0  # ever, but for those that were closed at once
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._open) >= self._most
                self.refused += full
                self.accepted += not full
                if not full:
                    self._open.add(client)
            if full:
                client.close()
                continue
            server = socket.create_connection(self._target)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(client, source, sink), name="gate", daemon=True).start()

    def _pass_on(self, client: socket.socket, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(client)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


@contextmanager
def gated(uri: str, most: int) -> Iterator[tuple[Gate, str]]:
    parts = urlsplit(uri)
    assert parts.hostname is not None and parts.port is not None
    with ExitStack() as stack:
        gate = Gate((parts.hostname, parts.port), most)
        stack.callback(gate.close)
        yield gate, uri.replace(f":{parts.port}", f":{gate.port}", 1)


def test_read_tasks_open_no_session(spark: SparkSession, cluster: Any, save: Callable[..., None], log: str) -> None:
    """SES-13: eight tasks in the worker processes of Spark, against a ZooKeeper that this test alone talks to."""
    save(spark.range(1000).repartition(4), log=log)
    with gated(cluster.uri, 60) as (gate, uri):
        options = parse_options({"bookkeeper.metadataServiceUri": uri, "log": log, "minPartitions": "8"})
        try:
            reader: Any = batch_reader(options, schema_of(options))
            partitions = reader.partitions()
            assert len(partitions) == 8
            before = gate.accepted

            def read(part: Any) -> tuple[int, int, list[bool]]:
                rows = sum(batch.num_rows for batch in reader.read(part))
                return rows, os.getpid(), [store.has_session for _, store, _ in clients._readers.values()]

            found = spark.sparkContext.parallelize(partitions, 8).map(read).collect()
            assert sum(rows for rows, _, _ in found) == 1000
            assert os.getpid() not in {process for _, process, _ in found}
            assert not any(session for _, _, sessions in found for session in sessions)
            assert gate.accepted == before and not gate.refused
        finally:
            clients._clients.pop((os.getpid(), uri, options.protocol)).close()


def test_a_task_that_gets_no_session_names_the_limit(spark: SparkSession, cluster: Any, active: None, log: str) -> None:
    """SES-11: the one connection is the planner's, so one task of two at least gets none."""
    with gated(cluster.uri, 1) as (gate, uri):
        writer = spark.range(0, 1000, 1, 2).write.format("bookkeeper").options(log=log).option("bookkeeper.metadataServiceUri", uri)
        with pytest.raises(Exception, match="maxClientCnxns") as caught:
            writer.mode("append").save()
        assert f"127.0.0.1:{gate.port} accepts a connection and closes it at once" in str(caught.value)
        assert gate.refused
