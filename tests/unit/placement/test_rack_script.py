"""Racks by an operator's script (metadata.md 5.1): what it is given, what it may print, and every way in which it may fail."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.client.doctor.bookies import judge_cluster
from bk_core.client.doctor.facts import rack_of
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, NotEnoughBookiesError
from bk_core.metadata import rack_script
from bk_core.metadata.host_addresses import AT_ONCE, NAMES_S, addresses_of
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.rack_script import ADDRESSES_MAX, RETRY_S, RackScript, ScriptedRacks
from bk_core.metadata.uri import parse
from bk_core.net.names import Names

BY_LAST = """#!/bin/sh
echo "$@" >> {told}
for address in "$@"; do echo "/rack-${{address##*.}}"; done
"""
TIMEOUT_S = 1.0
HANGS_S = 60


class Script:
    """A script in a folder, which takes down what it is called with."""

    def __init__(self, folder: Path) -> None:
        self.path, self.told = folder / "racks.sh", folder / "told"
        self.writes(BY_LAST)

    def writes(self, text: str) -> None:
        """Have it do this from now on. It is renamed into its place, because nobody may write to a file that is being run."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text.format(told=self.told))
        fresh.chmod(0o755)
        fresh.rename(self.path)

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self.told.read_text().splitlines()] if self.told.exists() else []


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(uuid.uuid4().hex)
    made.initialize_cluster()
    for number in range(1, 4):
        made.register_bookie(f"b{number}", f"10.0.0.{number}", 3181)
    return made


def asked(script: Script, *addresses: str) -> tuple[dict[str, str], str]:
    return RackScript(str(script.path), TIMEOUT_S).locations(addresses)


def known(host: str, *_: object, **__: object) -> list[Any]:
    """Answer like a name server with one name: IPv6 first, as systems often have it."""
    if host != "bookie.example":
        raise socket.gaierror(socket.EAI_NONAME, "no such name")
    places = ((socket.AF_INET6, ("fd00::7", 0, 0, 0)), (socket.AF_INET, ("10.0.0.7", 0)))
    return [(family, socket.SOCK_STREAM, 6, "", place) for family, place in places]


def scripted(
    store: MemoryStore, script: Script, *, timeout_s: float = TIMEOUT_S, retry_s: float = RETRY_S, server: Any = known
) -> ScriptedRacks:
    """Racks that no bookie is registered for yet."""
    return ScriptedRacks(store, RackScript(str(script.path), timeout_s), Names(lambda tell: tell(), server).lookup, retry_s)


def racks_of(store: MemoryStore, script: Script, **options: Any) -> ScriptedRacks:
    racks = scripted(store, script, **options)
    racks.bookies_changed(["b1", "b2", "b3"])
    racks.settle()
    return racks


def comes(condition: Callable[[], object]) -> None:
    """Wait for what other threads bring."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def places(racks: ScriptedRacks) -> list[str | None]:
    return [racks.topology().rack_of(f"b{number}") for number in range(1, 4)]


# --- one run ------------------------------------------------------------------------------------------------------------


def test_it_gets_addresses_as_arguments_and_prints_a_location_for_each(script: Script) -> None:
    assert asked(script, "10.0.0.1", "10.0.0.2") == ({"10.0.0.1": "/rack-1", "10.0.0.2": "/rack-2"}, "")
    assert script.calls == [["10.0.0.1", "10.0.0.2"]]
    assert asked(script) == ({}, "") and len(script.calls) == 1


def test_one_run_gets_a_hundred_addresses_at_most(script: Script) -> None:
    addresses = [f"10.0.{number // 100}.{number % 100}" for number in range(2 * ADDRESSES_MAX + 1)]
    found, problem = asked(script, *addresses)
    assert found == {one: f"/rack-{one.rpartition('.')[2]}" for one in addresses} and not problem
    assert [len(call) for call in script.calls] == [100, 100, 1]


def test_locations_may_stand_in_one_line(script: Script) -> None:
    """Java takes what it prints apart at white space."""
    script.writes("#!/bin/sh\nprintf '/a /b\\t/c'\n")
    assert asked(script, "1", "2", "3") == ({"1": "/a", "2": "/b", "3": "/c"}, "")


def test_a_script_that_names_no_interpreter_is_run_by_the_shell(script: Script) -> None:
    script.writes("echo /plain\n")
    assert asked(script, "10.0.0.1") == ({"10.0.0.1": "/plain"}, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#!/bin/sh\necho /one\n", "it printed 1 location for 2 addresses"),
        ("#!/bin/sh\necho /one /two /three\n", "it printed 3 locations for 2 addresses"),
        ("#!/bin/sh\n", "it printed 0 locations for 2 addresses"),
        ("#!/bin/sh\necho /a /b; echo 'no table\nmore' >&2; exit 3\n", "it ended with status 3: 'no table'"),
        ("#!/bin/sh\nkill -9 $$\n", "it ended with status -9"),
        ("#!/no/such/interpreter\n", "it cannot be run: No such file or directory"),
        ("#!/bin/sh\nyes /rack\n", "it printed more than 1 MiB"),
        ("#!/bin/sh\nyes oops >&2\n", "it printed more than 1 MiB"),
    ],
)  # fmt: skip
def test_a_run_that_tells_no_racks_says_why(script: Script, text: str, problem: str) -> None:
    script.writes(text)
    assert asked(script, "10.0.0.1", "10.0.0.2") == ({}, problem)


@pytest.mark.parametrize(
    "text",
    [
        f"#!/bin/sh\nsleep {HANGS_S} & echo $! > {{told}}; wait\n",
        f"#!/bin/sh\nsleep {HANGS_S} & echo $! > {{told}}; exec >&- 2>&-; wait\n",  # it has closed its output
        f"#!/bin/sh\nsleep {HANGS_S} & echo $! > {{told}}; echo /a\n",  # it ends, and its child holds the output
    ],
)
def test_a_script_that_hangs_is_killed_with_its_children(script: Script, text: str) -> None:
    script.writes(text)
    for _ in range(10):
        begun = time.monotonic()
        assert asked(script, "10.0.0.1") == ({}, "it did not end within 1 s")
        assert time.monotonic() - begun < HANGS_S / 2
        if script.told.exists() and script.told.read_text().strip():
            break  # on a busy machine the shell may be killed before it has told of its child
    child = int(script.told.read_text())
    deadline = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < deadline, "the child of the script lives on"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """A child that nobody has collected yet has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the racks of bookies -----------------------------------------------------------------------------------------------


def test_bookies_have_the_racks_that_it_prints_and_it_is_asked_once(store: MemoryStore, script: Script) -> None:
    racks = racks_of(store, script)
    assert places(racks) == ["/rack-1", "/rack-2", "/rack-3"]
    store.register_bookie("twin", "10.0.0.1", 3182)
    racks.bookies_changed(["b1", "b2", "b3", "twin"])
    racks.settle()
    assert racks.topology().rack_of("twin") == "/rack-1" and not racks.problem
    assert script.calls == [["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["10.0.0.1"]]
    racks.close()


def test_host_names_become_addresses_as_in_java(store: MemoryStore, script: Script) -> None:
    store.register_bookie("named", "bookie.example", 3181)
    store.register_bookie("nowhere", "elsewhere.example", 3181)
    racks = racks_of(store, script)
    racks.bookies_changed(["named", "nowhere"])
    racks.settle()
    assert script.calls[-1] == ["10.0.0.7", "elsewhere.example"]
    racks.close()


def test_names_that_hang_delay_no_others_and_nobody_for_long(store: MemoryStore, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rack_script, "addresses_of", partial(addresses_of, timeout_s=0.5))
    go, ended = threading.Event(), threading.Event()

    def hanging(host: str, *rest: object, **options: object) -> list[Any]:
        if host.startswith("a-slow"):
            ended.wait(60)
            if not go.is_set():
                raise socket.gaierror(socket.EAI_AGAIN, "no answer")
            return known("bookie.example")
        return known(host, *rest, **options)

    store.register_bookie("named", "bookie.example", 3181)
    slow = [f"s{number}" for number in range(5)]
    for one in slow:
        store.register_bookie(one, f"a-slow-{one}.example", 3181)
    racks = scripted(store, script, retry_s=0.05, server=hanging)
    begun = time.monotonic()
    racks.bookies_changed([*slow, "named"])
    racks.settle()
    assert time.monotonic() - begun < 4  # one after the other they take longer
    assert script.calls == [["10.0.0.7"]] and racks.problem.endswith("was not looked up within 5 s")
    go.set()
    ended.set()
    comes(lambda: not racks.problem)
    assert racks.topology().rack_of("s3") == "/rack-7"
    racks.close()


def test_names_that_hang_do_not_keep_others_from_being_looked_up_for_ever() -> None:
    """Nor do those that hang keep each other: each comes to its turn."""
    answering, asked, idle = {"z"}, list[str](), 0

    def lookup(host: str, _port: int, then: Any) -> None:
        nonlocal idle
        idle = 0
        asked.append(host)
        if host in answering:
            then([(family, kind, number, place) for family, kind, number, _, place in known("bookie.example")], "")

    def is_over() -> bool:
        """The question ends when it has waited for a while, and by no clock: a busy machine may stand still for longer."""
        nonlocal idle
        idle += 1
        return idle > 4

    def question(names: list[str]) -> dict[str, str]:
        asked.clear()
        return addresses_of(names, lookup, is_over, hung, 60)

    hung: dict[str, None] = {}
    slow = [f"slow{number:02}" for number in range(AT_ONCE + 2)]
    assert question([*slow, "z"]) == {} and asked == slow[:AT_ONCE]
    assert question([*slow, "z"]) == {"z": "10.0.0.7"} and asked == [*slow[AT_ONCE:], "z", *slow[: AT_ONCE - 2]]
    answering.update(slow[AT_ONCE - 2 : AT_ONCE])
    assert question(slow) == dict.fromkeys(slow[AT_ONCE - 2 : AT_ONCE], "10.0.0.7")
    assert asked[:2] == slow[AT_ONCE - 2 : AT_ONCE]  # which were not looked up at all last time
    assert question(slow[:1]) == {} and list(hung) == slow[:1]


def test_a_client_whose_names_hang_closes_at_once(store: MemoryStore, script: Script) -> None:
    asked, ended = threading.Event(), threading.Event()

    def hanging(*_: object, **__: object) -> list[Any]:
        asked.set()
        ended.wait(60)
        return []

    store.register_bookie("named", "bookie.example", 3181)
    racks = scripted(store, script, server=hanging)
    racks.bookies_changed(["named"])
    assert asked.wait(20)
    closing = time.monotonic()
    racks.close()
    assert time.monotonic() - closing < NAMES_S / 2 and not _threads()
    ended.set()


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("bookkeeper-racks")]


def test_a_store_that_does_not_answer_is_asked_once_for_all_bookies(script: Script) -> None:
    store = Unreachable(uuid.uuid4().hex)
    racks = racks_of(store, script)
    assert store.asked == 1 and racks.problem == "nobody answers" and script.calls == []
    racks.close()


class Unreachable(MemoryStore):
    asked = 0

    def resolve(self, bookie_id: str) -> tuple[str, int]:
        self.asked += 1
        raise MetadataUnavailableError("nobody answers")


@pytest.mark.parametrize("host", ["-rf", "10.0.0.9\0", "a\0b"])
def test_a_host_that_is_an_option_or_no_argument_is_not_given_to_it(store: MemoryStore, script: Script, host: str) -> None:
    store.register_bookie("sly", host, 3181)
    racks = racks_of(store, script)
    racks.bookies_changed(["b1", "sly"])
    racks.settle()
    assert len(script.calls) == 1 and "no host" in racks.problem and racks.topology().rack_of("sly") == "/default-rack"
    assert places(racks) == ["/rack-1", "/rack-2", "/rack-3"]
    racks.close()


def test_what_no_process_can_be_given_is_a_failed_run(script: Script) -> None:
    found, problem = asked(script, "10.0.0.1", "a\0b")
    assert not found and problem == "it cannot be run: embedded null byte" and script.calls == []


def test_where_it_fails_bookies_are_in_the_default_rack_and_one_line_says_so(
    store: MemoryStore, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script.writes("#!/bin/sh\necho /one\necho again >> {told}\n")
    with caplog.at_level(logging.INFO):
        racks = racks_of(store, script, retry_s=0.01)
        assert places(racks) == ["/default-rack"] * 3
        comes(lambda: len(script.calls) > 2)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"no rack from the script {script.path} for 3 bookies (b1, b2, b3): it printed 1 location for 3 addresses")
    racks.close()


def test_it_is_asked_again_later_though_nobody_places_a_ledger(store: MemoryStore, script: Script) -> None:
    script.writes("#!/bin/sh\nexit 1\n")
    racks = racks_of(store, script, retry_s=0.3)
    begun = time.monotonic()
    script.writes(BY_LAST)
    assert racks.problem and script.calls == []
    comes(lambda: not racks.problem)
    assert places(racks) == ["/rack-1", "/rack-2", "/rack-3"] and len(script.calls) == 1
    assert time.monotonic() - begun > 0.2 and RETRY_S == 60
    racks.close()


def test_a_bookie_that_leaves_takes_its_problem_along(store: MemoryStore, script: Script) -> None:
    store.register_bookie("sly", "-rf", 3181)
    racks = racks_of(store, script)
    racks.bookies_changed(["b1", "sly"])
    racks.settle()
    assert "no host" in racks.problem
    racks.bookies_changed(["b1"])
    assert not racks.problem
    racks.close()


def test_bookies_that_are_gone_do_not_decide_the_depth(store: MemoryStore, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    racks = racks_of(store, script)
    store.register_bookie("new", "10.1.0.1", 3181)
    script.writes("#!/bin/sh\necho /dc1/new\n")
    with caplog.at_level(logging.WARNING):
        racks.bookies_changed(["b1", "b2", "b3", "new"])
        racks.settle()
        assert racks.topology().rack_of("new") is None
        racks.bookies_changed(["b1", "b2", "new"])
        racks.bookies_changed(["new"])
    assert racks.topology().rack_of("new") == "/dc1/new" and not racks.problem
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["new"]
    racks.close()


def test_few_of_those_that_are_gone_are_remembered(store: MemoryStore, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rack_script, "GONE_MAX", 2)
    racks = racks_of(store, script)
    store.register_bookie("b4", "10.0.0.4", 3181)
    racks.bookies_changed(["b3", "b4"])
    racks.settle()
    assert places(racks) == ["/rack-1", "/rack-2", "/rack-3"]
    racks.bookies_changed([])
    assert [*places(racks), racks.topology().rack_of("b4")] == ["/default-rack", "/default-rack", "/rack-3", "/rack-4"]
    racks.close()


def test_a_bookie_that_comes_back_is_asked_for_anew_and_keeps_its_rack_meanwhile(store: MemoryStore, script: Script) -> None:
    racks = racks_of(store, script)
    script.writes("#!/bin/sh\nexit 1\n")
    for there in (["b1", "b2"], ["b1", "b2", "b3"]):
        racks.bookies_changed(there)
        racks.settle()
    assert racks.topology().rack_of("b3") == "/rack-3" and "status 1" in racks.problem
    script.writes("#!/bin/sh\necho /moved\n")
    for there in (["b1", "b2"], ["b1", "b2", "b3"]):
        racks.bookies_changed(there)
        racks.settle()
    assert racks.topology().rack_of("b3") == "/moved" and not racks.problem
    racks.close()


def test_a_bookie_that_registered_anew_is_asked_for_anew_and_older_bookies_are_not_taken(store: MemoryStore, script: Script) -> None:
    racks = scripted(store, script)
    racks.bookies_changed(["b1", "b2"], (), 2)
    racks.settle()
    racks.bookies_changed(["b1"], (), 1)
    assert racks.topology().registered == {"b1", "b2"} and len(script.calls) == 1
    racks.bookies_changed(["b1", "b2"], ["b2", "b3"], 3)
    racks.settle()
    assert script.calls == [["10.0.0.1", "10.0.0.2"], ["10.0.0.2"]] and places(racks)[:2] == ["/rack-1", "/rack-2"]
    script.writes("#!/bin/sh\nexit 1\n")
    racks.bookies_changed(["b1", "b2"], ["b2"], 4)
    racks.settle()
    assert racks.problem and places(racks)[1] == "/rack-2"  # the last known one
    racks.bookies_changed(["b1"], (), 5)
    assert not racks.problem and racks.topology().registered == {"b1"}
    racks.close()


def test_nobody_who_brings_a_change_or_chooses_bookies_waits_for_it(store: MemoryStore, script: Script) -> None:
    racks = scripted(store, script, timeout_s=HANGS_S)
    script.writes(f"#!/bin/sh\necho here > {{told}}.now; sleep {HANGS_S}\n")
    store.register_bookie("late", "10.0.0.9", 3181)
    begun = time.monotonic()
    racks.bookies_changed(["b1", "b2", "b3", "late"])
    assert racks.topology().rack_of("late") == "/default-rack" and time.monotonic() - begun < HANGS_S / 4
    comes(Path(f"{script.told}.now").exists)
    closing = time.monotonic()
    racks.close()  # ends the script, and waits no longer
    assert time.monotonic() - closing < HANGS_S / 4


def test_a_bookie_that_comes_back_elsewhere_while_it_is_asked_is_asked_for_again(store: MemoryStore, script: Script) -> None:
    first, second = (script.path.with_name(name) for name in ("10.0.0.7", "10.0.0.8"))
    for gate in (first, second):
        os.mkfifo(gate)
    script.writes(f"#!/bin/sh\nread go < {script.path.parent}/$1\n" + BY_LAST.removeprefix("#!/bin/sh\n"))
    registered = store.register_bookie("b", "10.0.0.7", 3181)
    racks = scripted(store, script, timeout_s=HANGS_S)
    racks.bookies_changed(["b"])
    waiting = reached(first)
    registered.close()
    racks.bookies_changed([])
    store.register_bookie("b", "10.0.0.8", 3181)
    racks.bookies_changed(["b"])
    go_on(waiting)
    go_on(reached(second))
    racks.settle()
    assert script.calls == [["10.0.0.7"], ["10.0.0.8"]] and racks.topology().rack_of("b") == "/rack-8"
    racks.close()


def reached(gate: Path) -> int:
    """Return a descriptor of a pipe that somebody has begun to read."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < deadline, f"nobody reads {gate}"
            time.sleep(0.01)


def go_on(gate: int) -> None:
    os.write(gate, b"go\n")
    os.close(gate)


# --- a client -----------------------------------------------------------------------------------------------------------


def connected(store: MemoryStore, script: Script, **settings: object) -> bk_core.BookKeeper:
    given = {"placement": "rack-aware", "rack_script": str(script.path), "rack_script_timeout_s": TIMEOUT_S, **settings}
    return bk_core.connect("memory://racks", store=store, **given)  # type: ignore[arg-type]


def ensemble(client: bk_core.BookKeeper) -> set[str]:
    ledger = client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    found = set(client.ledger_metadata(ledger.ledger_id).last_fragment.ensemble)
    ledger.abandon()
    return found


def test_a_client_knows_the_racks_when_it_is_connected(store: MemoryStore, script: Script) -> None:
    script.writes('#!/bin/sh\nfor one in "$@"; do case $one in *.3) echo /far;; *) echo /near;; esac; done\n')
    with connected(store, script, enforce_racks=True) as client:
        assert all("b3" in ensemble(client) for _ in range(8))
        assert not list(judge_cluster(client)) and (rack_of(client, "b3"), rack_of(client, "b1")) == ("/far", "/near")


def test_a_hanging_script_delays_the_connection_alone(store: MemoryStore, script: Script) -> None:
    script.writes(f"#!/bin/sh\nsleep {HANGS_S}\n")
    with connected(store, script) as client:
        begun = time.monotonic()
        assert len(ensemble(client)) == 2 and time.monotonic() - begun < TIMEOUT_S
        (finding,) = judge_cluster(client)
        assert finding.code == "racks-unreadable" and "did not end within 1 s" in finding.what
    assert not _threads()


def test_a_script_that_hangs_later_delays_nobody(store: MemoryStore, script: Script) -> None:
    """Only a client that connects waits for it."""
    with connected(store, script, rack_script_timeout_s=HANGS_S) as client:
        script.writes(f"#!/bin/sh\nsleep {HANGS_S}\n")
        store.register_bookie("late", "10.0.0.9", 3181)
        begun = time.monotonic()
        client._session.refresh_bookies()
        with pytest.raises(NotEnoughBookiesError):
            client.create_ledger(ensemble_size=9, write_quorum_size=2, ack_quorum_size=2)
        assert (rack_of(client, "late"), rack_of(client, "b1")) == ("/default-rack", "/rack-1")
        assert time.monotonic() - begun < HANGS_S / 4


def test_ledgers_are_placed_when_all_bookies_with_another_depth_are_gone(store: MemoryStore, script: Script) -> None:
    script.writes('#!/bin/sh\nfor one in "$@"; do case $one in 10.0.*) echo /old;; *) echo /dc1/rack-$one;; esac; done\n')
    new = MemoryStore(store._name)
    with connected(new, script) as client:
        for number in range(2):
            new.register_bookie(f"n{number}", f"10.1.0.{number}", 3181)
        comes(lambda: rack_of(client, "n0") is rack_of(client, "n1") is None)
        store.close()  # with all that is registered through it
        comes(lambda: "b1" not in client.bookies().writable)
        assert ensemble(client) == {"n0", "n1"}


def test_with_enforced_racks_a_failing_script_lets_nothing_be_placed(store: MemoryStore, script: Script) -> None:
    script.writes("#!/bin/sh\nexit 1\n")
    with connected(store, script, enforce_racks=True) as client, pytest.raises(NotEnoughBookiesError, match="in no usable rack"):
        ensemble(client)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rack_script": "/no/such/script"}, "is no file on this host"),
        ({"rack_script": "/etc"}, "is no file on this host"),
        ({"rack_script": __file__}, "may not be run by this user"),
        ({"rack_script": ""}, "must be the path of a script"),
        ({"rack_script": 7}, "rack_script must be text"),
        ({"rack_script_timeout_s": 0}, "rack_script_timeout_s must be"),
        ({"racks": {"b1": "/r"}}, "not from both"),
        ({"placement": "random"}, "mean nothing without"),
    ],
)
def test_settings_that_cannot_be_are_refused(store: MemoryStore, script: Script, settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        connected(store, script, **settings)


def test_the_environment_names_a_script_and_a_uri_does_not(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URI comes from whoever writes a query, and must not choose which programs run on the hosts of a cluster."""

    def config(options: str, **settings: object) -> bk_core.ClientConfig:
        return bk_core.ClientConfig(f"zk://h:1/ledgers?{options}", **settings)  # type: ignore[arg-type]

    monkeypatch.delenv("BK_RACK_SCRIPT", raising=False)
    assert config("placement=rack-aware").script_of_racks is None
    monkeypatch.setenv("BK_RACK_SCRIPT", str(script.path))
    found = config("placement=rack-aware", min_racks=3)
    assert (found.placement_policy, found.script_of_racks, found.min_racks) == ("rack-aware", str(script.path), 3)
    assert (config("chroot=/x").placement_policy, config("chroot=/x").script_of_racks) == ("random", None)
    assert config("placement=rack-aware", rack_script="/y").script_of_racks == "/y"
    assert config("placement=rack-aware", racks={"a": "/b"}).script_of_racks is None
    for options, words in (("placement=nearest", "must be one of random, rack-aware"), ("placement=", "has no value")):
        with pytest.raises(InvalidArgumentError, match=words):
            config(options)
    with pytest.raises(InvalidArgumentError, match="unknown option 'rack_script'"):
        parse(f"zk://h:1/ledgers?rack_script={script.path}")
