"""One ZooKeeper server as a child process, from the jars that the pyspark wheel carries: for local clusters and tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from bk_core.bookie.children import end, spawn
from bk_core.bookie.java_files import java_environment, java_value
from bk_core.bookie.ports import listens
from bk_core.bookie.private import make_directory
from bk_core.display.words import host_port
from bk_core.errors import ZooKeeperProcessError

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.1
_PORT_TRIES = 5
_LOG_TAIL_BYTES = 2000


def find_java() -> str:
    """Return the path of the java command from JAVA_HOME, else from PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.is_file():
            raise ZooKeeperProcessError("JAVA_HOME is set but has no bin/java: point it at a Java 17 or newer, or unset it")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise ZooKeeperProcessError("ZooKeeper needs Java 17 or newer: install one, or set JAVA_HOME")
    return found


def find_jars() -> str:
    """Return a class path with ZooKeeper: the jars of the installed pyspark, which is only looked for, not imported."""
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        jars = Path(location, "jars")
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return str(jars / "*")
    raise ZooKeeperProcessError("no ZooKeeper was found: install pyspark, whose wheel carries one, or use a running ZooKeeper")


class ZooKeeperProcess:
    """A standalone server with its data in ``directory``; the port is kept there and used again after a restart. It listens on 127.0.0.1,
    or on the ``clientPortAddress`` of its settings.

    Sessions may be as short as one second, so that the registrations of killed bookies go away quickly. On Linux the server dies with
    this process.

    ``settings`` are more lines of zoo.cfg, by name, such as those of TLS; ``java_options`` are more options of the Java machine, such as
    the file that tells SASL who the users are.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._settings = dict(settings or {})
        self._host = self._settings.get("clientPortAddress", "127.0.0.1")
        self._java_options = list(java_options)
        self._directory = Path(directory)
        self._port = port
        self._fixed = port is not None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port of the server; there is one after the first start."""
        if self._port is None:
            raise ZooKeeperProcessError("this ZooKeeper was not started yet")
        return self._port

    @property
    def connect_string(self) -> str:
        return host_port(self._host, self.port)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        """Start the server, and return when it answers. Raises ZooKeeperProcessError otherwise. It has no effect if the server runs."""
        if self._process is not None and self._process.poll() is None:
            return self
        command = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self._java_options]
        command += ["-cp", find_jars(), MAIN_CLASS]
        make_directory(self._directory)  # metadata of ledgers holds their passwords
        make_directory(self._directory / "data")
        kept = self._directory / "port"
        if self._port is None and kept.is_file():
            self._port, self._fixed = int(kept.read_text()), True
        tries = 1 if self._fixed else _PORT_TRIES
        for attempt in range(tries):
            if not self._fixed:
                self._port = _free_port()  # another process may take it before ZooKeeper does
            if self._run(command):
                kept.write_text(str(self._port))
                self._fixed = True
                return self
            if attempt == tries - 1:
                break
        raise ZooKeeperProcessError(f"ZooKeeper did not start on port {self._port}; its output ends with:\n{self._log_tail()}")

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM, then with SIGKILL if that is not enough."""
        self._end(signal.SIGTERM)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self, command: list[str]) -> bool:
        configuration = self._directory / "zoo.cfg"
        settings = {
            "dataDir": str(self._directory.resolve() / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": self._host,
            "tickTime": "500",
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "60000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr",
        } | self._settings
        configuration.write_text("".join(f"{name}={java_value(value)}\n" for name, value in settings.items()), encoding="ascii")
        with open(self._directory / "zookeeper.log", "ab") as log:
            there = java_environment(configuration.resolve())
            self._process = spawn([*command, str(configuration)], stdout=log, stderr=log, env=there)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process.poll() is None:
            # it is this one, and not another server while this one is about to fail
            if _serves(self._host, self.port) and listens(self._process.pid, self.port):
                return True
            if time.monotonic() > deadline:
                self.kill()
                return False
            time.sleep(_POLL_S)
        return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, number, _STOP_TIMEOUT_S)

    def _log_tail(self) -> str:
        try:
            return (self._directory / "zookeeper.log").read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
        except FileNotFoundError:
            return "(nothing)"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _serves(host: str, port: int) -> bool:
    """Return True if the server answers the four-letter word ``srvr`` with its mode, which it does only when it takes sessions."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"Mode:" in answer
