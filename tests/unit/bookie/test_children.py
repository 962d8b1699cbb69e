"""Children are started by one thread that lives as long as the process, and no Python runs between fork and exec."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.children import Child, spawn
from bk_core.errors import BookieUnavailableError

_TELLS_OF_FORKS = """
import os, subprocess, sys
os.register_at_fork(after_in_child=lambda: os.write(2, b"PYTHON RAN IN THE FORK"))
from bk_core.bookie.children import spawn
child = spawn(["true"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(child.wait())
"""


def test_no_python_runs_between_fork_and_exec() -> None:
    done = subprocess.run([sys.executable, "-c", _TELLS_OF_FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0"]
    assert "PYTHON RAN" not in done.stderr


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


_PARENT = """
import subprocess, threading
from bk_core.bookie.children import spawn
started = []
def start():
    started.append(spawn(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(started[0].pid, flush=True)
def later():  # not a daemon: it goes on behind the end of the main thread
    threading.main_thread().join()
    print("ENDED" if started[0].poll() is not None else "LIVES", flush=True)
    try:
        spawn(["true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait()
        print("STARTED", flush=True)
    finally:
        input()
threading.Thread(target=later).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="death signals are Linux's")
def test_a_child_outlives_the_threads_but_not_the_process() -> None:
    """The thread that asked for it, and the main thread, may end. The process that started it may not, even by SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline().strip() == "LIVES"
        assert parent.stdout.readline().strip() == "STARTED"
        assert not _is_gone(child)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not _is_gone(child):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def test_a_forked_child_of_this_process_starts_children_of_its_own() -> None:
    program = (
        "import os, subprocess, sys; from bk_core.bookie.children import spawn\n"
        "run = lambda: spawn(['true'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(30)\n"
        "assert run() == 0\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    os._exit(run())\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_id_is_that_of_the_program_and_pipes_break_as_usual(tmp_path: Path) -> None:
    """The launcher becomes the program. What Python ignores for itself is not inherited."""
    script = "import os, signal; print(os.getpid(), os.getppid(), os.getsid(0))\n"
    with (tmp_path / "out").open("w") as output:
        child = spawn([sys.executable, "-c", script], stdout=output, stderr=output)
        assert child.wait(60) == 0
    assert (tmp_path / "out").read_text().split() == [str(child.pid), str(os.getpid()), str(child.pid)]
    if sys.platform == "linux":
        with (tmp_path / "out").open("w") as output:
            assert spawn(["grep", "SigIgn", "/proc/self/status"], stdout=output, stderr=output).wait(60) == 0
        ignored = int((tmp_path / "out").read_text().split()[1], 16)
        assert not ignored & (1 << (signal.SIGPIPE - 1))


@pytest.mark.parametrize("point", ["before the fork", "behind it"])
def test_an_interrupt_while_a_child_is_started_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Nobody has the process then, and it would keep its port and directory until this one ends."""
    started: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    popen = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if point == "before the fork":
            signal.raise_signal(signal.SIGINT)
        made = popen(*arguments, **options)
        if point == "behind it":
            signal.raise_signal(signal.SIGINT)
        started.put(made)
        return made

    spawn(["true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60)
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Child("bookie x", ["sleep", "600"], tmp_path / "log")
    assert started.get(timeout=60).wait(60) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no launcher")
def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    child = Child("bookie x", [str(tmp_path / "no-such-program")], tmp_path / "log")
    with pytest.raises(BookieUnavailableError, match=r"(?s)status 127.*no-such-program cannot be started"):
        child.wait_until(lambda: False, 30)


def test_starting_from_many_threads(tmp_path: Path) -> None:
    statuses: list[int] = []

    def start() -> None:
        statuses.append(spawn(["true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 8
