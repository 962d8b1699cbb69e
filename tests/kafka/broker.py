"""One Kafka broker (KRaft, one node) as a child process on loopback."""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

from bk_core.bookie.apache import find_java
from bk_core.bookie.children import Child, accepts_connections, free_port
from tests.kafka.jars import BROKER, resolve

START_TIMEOUT_S = 90.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Broker:
    """``with Broker(directory) as broker: broker.servers``."""

    def __init__(self, directory: Path) -> None:
        libraries = resolve("kafka", BROKER, transitive=True)
        directory.mkdir(parents=True, exist_ok=True)
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        properties = directory / "server.properties"
        properties.write_text(_PROPERTIES.format(port=port, controller=controller, directory=directory))
        java = [find_java(), "-Xmx512m", "-cp", f"{libraries}/*"]
        cluster = urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        command = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage could not be formatted:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        self._child = Child("Kafka broker", [*java, "kafka.Kafka", str(properties)], directory / "kafka.log")
        try:
            self._child.wait_until(lambda: accepts_connections(port), START_TIMEOUT_S)
        except BaseException:
            self._child.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.stop()
