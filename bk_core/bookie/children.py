"""Child processes that never outlive their parent but to tidy up, and the ports they listen on."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bk_core.background import WorkerPool
from bk_core.errors import BookieUnavailableError, OperationTimeoutError
from bk_core.threads import Home

_LAUNCHER = Path(__file__).with_name("launcher.py")
_REMOVER = Path(__file__).with_name("remover.py")
_LOG_TAIL_LINES = 12
# Below the range from which the kernel takes ports for outgoing connections, so that a stopped bookie's port stays free for its return.
_PORTS = range(20_000, 32_000)
_SHARES = 16  # the parts of the range. Two processes that look for ports at the same time mostly look at different parts
_drawn: set[int] = set()  # the ports that this process took: their users may not listen yet, or may be stopped and come back


class _Spawner:
    """One thread that starts all children and lives as long as the process.

    The kernel ties a death signal to the *thread* that forked, not to its process. So the pool is never closed, and its one thread goes on
    after the main thread, as others may still work with the children.
    """

    def __init__(self) -> None:
        self.home = Home()
        self._thread = WorkerPool("bk-spawner")

    def start(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Return the process that ``job`` starts. If the wait for it is interrupted, nobody has the process, so it is killed."""
        made: list[subprocess.Popen[bytes]] = []

        def run() -> subprocess.Popen[bytes]:
            made.append(job())
            return made[0]

        try:
            return self._thread.call(run).result()
        except BaseException:
            self._thread.submit(lambda: _kill(made))  # behind the job, which may have yet to begin
            raise


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


_spawners: list[_Spawner] = []
_spawners_lock = threading.Lock()


def _spawner() -> _Spawner:
    """Return the spawner of this process. A forked child has its parent's, without the thread, and makes its own."""
    with _spawners_lock:
        if not _spawners or not _spawners[-1].home.is_here:
            _spawners[:] = [_Spawner()]
        return _spawners[-1]


def spawn(command: Sequence[str], *, stdout: Any, stderr: Any, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one (on Linux), in a session of its own: Ctrl-C in a terminal goes to the whole foreground
    group, and only the parent should decide what stops when.

    No Python runs in the forked child (launcher.py says why). A program that cannot be started ends with status 127 and says so on
    ``stderr``. The process is killed if an interrupt strikes before this returns.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *command]
    return _spawner().start(
        lambda: subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    )


def spawn_remover(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process that removes ``directory`` when this process, which holds the lock in there, lets it go or dies.

    It is the one child that outlives this process, for as long as that takes: in a session of its own, so that whoever kills this one's
    group leaves it.
    """
    command = [sys.executable, "-I", "-S", str(_REMOVER), str(directory)]
    quiet = subprocess.DEVNULL
    return _spawner().start(
        lambda: subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd=directory.parent, start_new_session=True)
    )


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens now. This process gives it to nobody else while there are others."""
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


def end(process: subprocess.Popen[bytes], number: signal.Signals | None, timeout_s: float) -> None:
    """Send the signal, if one is given, and SIGKILL after ``timeout_s`` seconds or when the wait is interrupted. Return when the process is
    gone."""
    if number is not None:
        process.send_signal(number)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:  # an interrupt, and nobody may come back to stop the process
        process.kill()
        process.wait()
        raise


class Child:
    """A child process. Its error output (and its output, unless ``stdout`` is a file or a descriptor for that) is appended to ``log``."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, stdout: Path | int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        self._is_ending = False
        try:
            with log.open("ab") as errors, ExitStack() as files:
                output = files.enter_context(stdout.open("wb")) if isinstance(stdout, Path) else stdout
                self._process = spawn(command, stdout=errors if output is None else output, stderr=errors, env=env)
        except BaseException:  # an interrupt: whoever makes this object never gets it
            if hasattr(self, "_process"):
                self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL; return when it is gone."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def begin_to_stop(self) -> None:
        """Send SIGTERM, and do not wait for the end; ``stop`` does."""
        self._process.send_signal(signal.SIGTERM)
        self._is_ending = True

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the process with SIGTERM, and with SIGKILL after ``timeout_s`` seconds or when the wait is interrupted."""
        # a second SIGTERM would strike a process that has put its handlers away and is about to end well
        end(self._process, None if self._is_ending else signal.SIGTERM, timeout_s)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll ``ready``. Raises BookieUnavailableError with the end of the log if the process ends first, and OperationTimeoutError."""
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
