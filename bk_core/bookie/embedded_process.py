"""An embedded bookie in a process of its own, which says READY through a pipe when it serves."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from bk_core.bookie.children import Child
from bk_core.bookie.door import Door
from bk_core.bookie.private import make_directory
from bk_core.errors import InvalidArgumentError

_START_TIMEOUT_S = 60.0


class EmbeddedBookieProcess:
    """A process ``python -m bk_core.bookie.server`` with its data and ``bookie.log`` in ``directory``; the port is kept there too."""

    def __init__(self, directory: Path, uri: str, port: int, metrics_port: int | None = None, door: Door | None = None) -> None:
        self._door = door
        self.bookie_id = f"127.0.0.1:{port}"
        self._port = port
        self.metrics_port = metrics_port
        self._directory = directory
        self._uri = uri
        self._child: Child | None = None
        self._output = -1  # a pipe: a file would want room on a disk that may be full
        self._said = b""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid if self.running and self._child else None

    @property
    def log(self) -> Path:
        return self._directory / "bookie.log"

    def start(self, *, accept_data_loss: bool = False) -> None:
        if self.running:
            raise InvalidArgumentError(f"bookie {self.bookie_id} is running")
        make_directory(self._directory)
        command = [sys.executable, "-u", "-m", "bk_core.bookie.server", "--uri", self._uri]
        command += ["--directory", str(self._directory / "data"), "--port", str(self._port), "--host", "127.0.0.1"]
        command += ["--refill-interval-s", "1"]
        if self.metrics_port is not None:
            command += ["--metrics-port", str(self.metrics_port)]
        if self._door is not None:
            files = (self._door.cert, self._door.key, self._door.client_ca, self._door.users_file)
            for flag, file in zip(("--tls-cert", "--tls-key", "--tls-client-ca", "--sasl-users"), files, strict=True):
                command += [] if file is None else [flag, file]
            command += ["--tls-roles", ",".join(self._door.roles)] if self._door.roles else []
            if (kerberos := self._door.kerberos) is not None:
                command += ["--kerberos-principal", kerberos.principal, "--kerberos-keytab", kerberos.keytab]
                command.append(f"--kerberos-clients={kerberos.clients}")
        if accept_data_loss:
            command.append("--accept-data-loss")
        source = str(Path(__file__).resolve().parents[2])  # this package, also when it is not installed
        path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
        self._close_output()
        reading, writing = os.pipe()
        self._output, self._said = reading, b""
        os.set_blocking(reading, False)
        try:
            self._child = Child(f"bookie {self.bookie_id}", command, self.log, stdout=writing, env={"PYTHONPATH": path})
        finally:
            os.close(writing)

    def wait_ready(self) -> None:
        """Wait until the bookie prints READY, which it does when it listens and is registered."""
        if self._child is None:
            raise InvalidArgumentError(f"bookie {self.bookie_id} was not started")
        self._child.wait_until(self._is_ready, _START_TIMEOUT_S)

    def _is_ready(self) -> bool:
        with suppress(BlockingIOError):
            self._said += os.read(self._output, 4096)
        return b"READY " in self._said

    def _close_output(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._close_output()

    def begin_to_stop(self) -> None:
        """Ask the process to end, and do not wait for it; ``stop`` does."""
        if self._child is not None and self._child.running:
            self._child.begin_to_stop()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._close_output()

    def wipe(self) -> None:
        """Lose the data, as a replaced disk does. The bookie must not be running."""
        if self.running:
            raise InvalidArgumentError(f"bookie {self.bookie_id} is running")
        shutil.rmtree(self._directory / "data", ignore_errors=True)
