"""Racks by an operator's script (metadata.md 5.1): what it is given, what it may print, and every way in which it may fail."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from pathlib import Path

import pytest

import bk_core
from bk_core.client.doctor.bookies import judge_cluster
from bk_core.client.doctor.facts import rack_of
from bk_core.errors import InvalidArgumentError, NotEnoughBookiesError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.rack_script import ADDRESSES_MAX, RETRY_S, RackScript, ScriptedRacks
from bk_core.metadata.uri import parse

BY_LAST = """#!/bin/sh
echo "$@" >> {told}
for address in "$@"; do echo "/rack-${{address##*.}}"; done
"""
TIMEOUT_S = 1.0
HANGS_S = 60


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


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


def racks_of(store: MemoryStore, script: Script, clock: Clock | None = None) -> ScriptedRacks:
    racks = ScriptedRacks(store, RackScript(str(script.path), TIMEOUT_S), clock or Clock())
    racks.bookies_changed(["b1", "b2", "b3"])
    racks.settle()
    return racks


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
    begun = time.monotonic()
    assert asked(script, "10.0.0.1") == ({}, "it did not end within 1 s")
    assert time.monotonic() - begun < HANGS_S / 2
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
    store.register_bookie("named", "localhost", 3181)
    store.register_bookie("nowhere", "no-such-host.invalid", 3181)
    racks = racks_of(store, script)
    racks.bookies_changed(["named", "nowhere"])
    racks.settle()
    assert script.calls[-1] == ["127.0.0.1", "no-such-host.invalid"]
    racks.close()


def test_a_host_that_looks_like_an_option_is_not_given_to_it(store: MemoryStore, script: Script) -> None:
    store.register_bookie("sly", "-rf", 3181)
    racks = racks_of(store, script)
    racks.bookies_changed(["b1", "sly"])
    racks.settle()
    assert len(script.calls) == 1 and "no host" in racks.problem and racks.topology().rack_of("sly") == "/default-rack"
    racks.close()


def test_where_it_fails_bookies_are_in_the_default_rack_and_one_line_says_so(
    store: MemoryStore, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script.writes("#!/bin/sh\necho /one\n")
    clock = Clock()
    with caplog.at_level(logging.INFO):
        racks = racks_of(store, script, clock)
        assert places(racks) == ["/default-rack"] * 3
        clock.now += RETRY_S
        racks.topology()
        racks.settle()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"no rack from the script {script.path} for 3 bookies (b1, b2, b3): it printed 1 location for 3 addresses")
    racks.close()


def test_it_is_asked_again_a_minute_later(store: MemoryStore, script: Script) -> None:
    script.writes("#!/bin/sh\nexit 1\n")
    clock = Clock()
    racks = racks_of(store, script, clock)
    script.writes(BY_LAST)
    clock.now += RETRY_S - 1
    assert places(racks) == ["/default-rack"] * 3
    racks.settle()
    assert script.calls == []
    clock.now += 1
    racks.topology()
    racks.settle()
    assert places(racks) == ["/rack-1", "/rack-2", "/rack-3"] and not racks.problem
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


def test_nobody_who_brings_a_change_or_chooses_bookies_waits_for_it(store: MemoryStore, script: Script) -> None:
    racks = ScriptedRacks(store, RackScript(str(script.path), HANGS_S))
    script.writes(f"#!/bin/sh\necho here > {{told}}.now; sleep {HANGS_S}\n")
    store.register_bookie("late", "10.0.0.9", 3181)
    begun = time.monotonic()
    racks.bookies_changed(["b1", "b2", "b3", "late"])
    assert racks.topology().rack_of("late") == "/default-rack" and time.monotonic() - begun < HANGS_S / 20
    while not Path(f"{script.told}.now").exists():
        time.sleep(0.01)
    closing = time.monotonic()
    racks.close()  # ends the script, and waits no longer
    assert time.monotonic() - closing < HANGS_S / 10


def test_a_bookie_that_comes_back_elsewhere_while_it_is_asked_is_asked_for_again(store: MemoryStore, script: Script) -> None:
    first, second = (script.path.with_name(name) for name in ("10.0.0.7", "10.0.0.8"))
    for gate in (first, second):
        os.mkfifo(gate)
    script.writes(f"#!/bin/sh\nread go < {script.path.parent}/$1\n" + BY_LAST.removeprefix("#!/bin/sh\n"))
    registered = store.register_bookie("b", "10.0.0.7", 3181)
    racks = ScriptedRacks(store, RackScript(str(script.path), 60.0))
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
    assert not [one.name for one in threading.enumerate() if one.name.startswith("bookkeeper-racks")]


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
