"""The writers that are gone for certain (JAN-5): the decision, and what real namespaces and a /proc that hides processes make of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from functools import cache

import pytest

from bk_core.client.log.intents import Intent, abandoned, intent_here, lives_here
from bk_core.client.processes import look_at
from bk_core.protocol.log.vanished import COMMIT_GRACE_MS, Place, Presence, Seen, certainly_gone, evidently_lives, may_be_collected

HOUR_MS = 3_600_000
HERE = Place("host", "boot pid:[1]")


@pytest.mark.parametrize(
    ("place", "started", "seen", "gone", "lives"),
    [
        (HERE, 7, Seen(Presence.ABSENT), True, False),
        (HERE, 7, Seen(Presence.ENDED), True, False),
        (HERE, 7, Seen(Presence.RUNNING, 7), False, True),
        (HERE, 7, Seen(Presence.RUNNING, 8), True, False),  # its number was given to another one
        (HERE, 7, Seen(Presence.HIDDEN), False, False),
        (HERE, 0, Seen(Presence.ABSENT), False, False),  # an older program says too little
        (Place("host", ""), 7, Seen(Presence.ABSENT), False, False),
        (Place("clone", HERE.boot), 7, Seen(Presence.ABSENT), False, False),
        (Place("host", "boot pid:[2]"), 7, Seen(Presence.RUNNING, 7), False, False),
    ],
)
def test_what_is_certain(place: Place, started: int, seen: Seen, gone: bool, lives: bool) -> None:
    """JAN-5."""
    assert certainly_gone(place, started, HERE, seen) is gone
    assert evidently_lives(place, started, HERE, seen) is lives
    assert not certainly_gone(Place("host", ""), started, Place("host", ""), seen), "nobody knows where that is"


@pytest.mark.parametrize(
    ("age_ms", "gone", "awaited", "collected"),
    [
        (0, True, False, True),  # history, or a writer that lists its ledgers itself
        (0, False, False, False),
        (COMMIT_GRACE_MS - 1, True, True, False),
        (COMMIT_GRACE_MS, True, True, True),
        (HOUR_MS - 1, False, True, False),
        (HOUR_MS, False, True, True),
    ],
)
def test_a_batch_that_is_about_to_be_committed_is_awaited_for_a_minute(age_ms: int, gone: bool, awaited: bool, collected: bool) -> None:
    """JAN-8, for a janitor that takes what is an hour old."""
    assert COMMIT_GRACE_MS == 60_000
    assert may_be_collected(age_ms, HOUR_MS, gone=gone, awaited=awaited) is collected


def test_an_age_that_is_given_counts_for_all() -> None:
    """JAN-8: less than the grace for those that are gone as well, and with 0 what a clock is a moment behind of."""
    assert may_be_collected(5, 5, gone=False, awaited=True) and not may_be_collected(4, 5, gone=True, awaited=True)
    assert may_be_collected(-1, 0, gone=False, awaited=True)


def test_this_process_lives() -> None:
    assert lives_here(intent_here(1, "q")) and not abandoned(intent_here(1, "q"))


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_a_number_that_is_none_tells_nothing(pid: int) -> None:
    """0 and -1 would mean others to the system call."""
    assert look_at(pid) == Seen(Presence.HIDDEN)


# --- real namespaces ---------------------------------------------------------------------------------------------------------


@cache
def _unshare(*options: str) -> tuple[str, ...]:
    """The command that starts a program in namespaces of its own."""
    command = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), *options)
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"this machine does not let us make namespaces: {' '.join(command)}")
    return command


def _run(command: tuple[str, ...], script: str) -> list[str]:
    done = subprocess.run([*command, sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


_TELL = "from bk_core.client.log.intents import *; i = intent_here(1, 'q'); print(i.host, i.pid, i.started, i.boot, sep='|')"


def _told(line: str) -> Intent:
    host, pid, started, boot = line.split("|")
    return Intent(1, "q", host, int(pid), 0, int(started), boot)


def _judge(intent: Intent) -> str:
    return f"from bk_core.client.log.intents import *; print(abandoned({intent!r}))"


def test_containers_that_share_the_name_of_the_host() -> None:
    """JAN-5: each has processes of its own, and nobody there can say anything of the others'."""
    one = _unshare("--pid", "--fork", "--mount-proc")
    (line,) = _run(one, _TELL)
    intent = _told(line)
    assert intent.host == socket.gethostname() and intent.started > 0 and intent.boot.split()[0] == intent_here(1, "q").boot.split()[0]
    assert not abandoned(intent)
    mine = intent_here(1, "q")
    assert _run(one, _judge(mine)) == ["False"]


def test_a_container_with_the_proc_of_its_host_says_nothing() -> None:
    """JAN-5: the numbers in there are others than its own."""
    command = _unshare("--pid", "--fork")
    script = _TELL + "; j = dataclasses.replace(i, started=5); print(abandoned(i), abandoned(j), lives_here(i))"
    line, judged = _run(command, "import dataclasses; " + script)
    assert (_told(line).started, _told(line).boot) == (0, "") and judged == "False False False"


def test_containers_that_share_processes_and_have_names_of_their_own() -> None:
    """JAN-5: only age tells, as for clones of a machine, which share the id of its boot."""
    name = "import socket; socket.sethostname('another-name'); "
    (line,) = _run(_unshare("--uts"), name + _TELL)
    intent = _told(line)
    assert intent.host == "another-name" and intent.boot == intent_here(1, "q").boot
    assert not abandoned(intent)
    assert _run(_unshare("--uts"), name + _judge(intent)) == ["True"]


def test_a_clock_of_its_own_makes_no_start_another_one() -> None:
    """JAN-5: a time namespace shifts what /proc says of starts, so it is part of the place."""
    command = _unshare("--time", "--boottime", "100000", "--fork")
    (line,) = _run(command, _TELL)
    assert not abandoned(_told(line))
    assert _run(command, _judge(intent_here(1, "q"))) == ["False"]


_HIDDEN = """
import os, subprocess, sys
from bk_core.client.log.intents import *
from bk_core.client.processes import look_at, place_here
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], stdin=-1, stdout=-1)
child.stdout.readline()
here = place_here()
intent = Intent(1, "q", here.host, child.pid, 0, look_at(child.pid).started, here.boot)
subprocess.run(["mount", "-o", "remount,hidepid=" + sys.argv[1], "/proc"], check=True)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print(os.access(f"/proc/{child.pid}/stat", os.R_OK), place_here() == here)
print(abandoned(intent), lives_here(intent))
child.stdin.close()
child.wait()
print(abandoned(intent), lives_here(intent))
"""


@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_a_process_that_proc_hides_is_not_gone(hidepid: str) -> None:
    """JAN-5: a worker of another user, where /proc shows everybody only their own. It is gone when it is gone."""
    command = _unshare("--pid", "--fork", "--mount-proc")
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    done = subprocess.run([*command, sys.executable, "-c", _HIDDEN, hidepid], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False True", "False False", "True False"]
