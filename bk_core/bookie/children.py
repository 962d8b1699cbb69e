"""Child processes that never outlive their parent, and the ports they listen on."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bk_core.errors import BookieUnavailableError, OperationTimeoutError

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
# The kernel watches the *thread* that forked. One thread that lives as long as the process makes it watch the process.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bk-spawner")
_LOG_TAIL_LINES = 12
# Below the range from which the kernel takes ports for outgoing connections, so that a stopped bookie's port stays free for its return.
_PORTS = range(20_000, 32_000)
_SHARES = 16  # of them. Two processes that look for ports at the same time mostly look at different ones
_drawn: set[int] = set()  # by this process: whoever got one may not listen yet, or be stopped and come back


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def spawn(command: Sequence[str], *, stdout: Any, stderr: Any, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one, in a session of its own: Ctrl-C in a terminal goes to the whole foreground group, and
    only the parent should decide what stops when."""
    return _SPAWNER.submit(
        lambda: subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    ).result()


def free_port() -> int:
    """A port of the loopback interface on which nothing listens now. Nobody else gets it from this process while there are others."""
    share = set(_PORTS[os.getpid() % _SHARES :: _SHARES])
    ports = random.sample(_PORTS, k=len(_PORTS))
    ports.sort(key=lambda port: (port in _drawn, port not in share))
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _drawn.add(port)
            return port
    raise BookieUnavailableError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Child:
    """One process; its error output (and ``stdout`` unless that has a file of its own) is appended to ``log``."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, stdout: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as errors, (stdout or Path(os.devnull)).open("wb") as output:
            self._process = spawn(command, stdout=output if stdout else errors, stderr=errors, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM, and SIGKILL after ``timeout_s`` seconds."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll ``ready``. BookieUnavailableError with the end of the log if the process ends first; OperationTimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                status = self._process.returncode
                raise BookieUnavailableError(f"{self.name} ended with status {status}; end of {self.log}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise OperationTimeoutError(f"{self.name} is not ready after {timeout_s:.0f} s; end of {self.log}:\n{self._tail()}")
            time.sleep(0.05)

    def _tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(f"    {line[:300]}" for line in lines[-_LOG_TAIL_LINES:])
