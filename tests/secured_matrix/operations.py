"""The operations of a cell: our client and Apache's Java client at the same time, each on what the other one has made."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import bk_core
from bk_core.client import BookKeeper
from bk_core.errors import LedgerFencedError
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.patience import PATIENT, until
from tests.integration.test_secured_bookies import THREE
from tests.secured_matrix.table import Sign
from tests.secured_matrix.worlds import World
from tests.soak.history import digests
from tests.soak.java_side import JavaProcess
from tests.soak.workload import PASSWORD, payload

COUNT = 120
LARGE = b"y" * 1_000_000
_JAVA_S = 90.0
_JAVA_FENCED = "-101"
_JAVA_TOO_FEW_BOOKIES = "-6"
_LOGGED_S = 10.0  # bookies write their logs while the client already has its error
LIMITS = replace(PATIENT, long_poll_ns=300_000_000)
"""With long polls so short that one has ended before there is an entry, so that it is seen to have waited."""


@dataclass
class Sides:
    """We and the Java client at one cluster over one protocol, and the ledgers that they have closed. Java is None where it cannot come in;
    then we work on what we have made ourselves."""

    client: BookKeeper
    java: JavaProcess | None
    pool: ThreadPoolExecutor
    uri: str
    protocol: str
    closed: dict[str, int] = field(default_factory=dict)

    def ask(self, command: str, each: Callable[[list[str]], None] = lambda _words: None) -> list[str]:
        assert self.java is not None
        return self.java.ask(command, each).result(_JAVA_S)


@contextmanager
def sides_at(world: World, protocol: Any) -> Iterator[Sides]:
    """Connect both clients."""
    with bk_core.connect(world.uri, protocol=protocol, limits=LIMITS) as client, ThreadPoolExecutor(1, "java-beside") as pool:
        java = world.java(protocol)
        try:
            yield Sides(client, java, pool, world.uri, protocol)
        finally:
            java.close()


def java_writes(sides: Sides, count: int = COUNT) -> int:
    """Have Java create a ledger and write into it. It stays open."""
    ledger_id = int(sides.ask("create 3 3 2")[1])
    java_appends(sides, ledger_id, count)
    return ledger_id


def java_connects(sides: Sides) -> bool:
    """Return True if Java can write now."""
    answers: list[list[str]] = []
    sides.ask(f"write {sides.ask('create 3 3 2')[1]} 1", answers.append)
    return answers == [["ack", "0"]]


def java_comes_in(sides: Sides, signs: Sequence[Sign], directory: Path) -> bool:
    """Return True if Java can write. Return False if none of the bookies took its entry and the logs in ``directory`` have since got one of
    the signs. Raises AssertionError if it failed in another way, and JavaFailedError."""
    before = {path: path.stat().st_size for sign in signs for path in directory.glob(sign.files)}
    answers: list[list[str]] = []
    sides.ask(f"write {sides.ask('create 3 3 2')[1]} 1", answers.append)
    if answers == [["ack", "0"]]:
        return True
    assert answers == [["nack", "0", _JAVA_TOO_FEW_BOOKIES]], f"Java did not fail as it may: {answers}"
    told = " or ".join(f"{sign.text!r} in {sign.files}" for sign in signs)
    until(lambda: any(_is_told(sign, directory, before) for sign in signs), f"Java failed without {told}", _LOGGED_S)
    return False


def _is_told(sign: Sign, directory: Path, before: Mapping[Path, int]) -> bool:
    """Return True if a log has the sign behind what was there before."""
    return any(sign.text.encode() in path.read_bytes()[before.get(path, 0) :] for path in directory.glob(sign.files))


def java_appends(sides: Sides, ledger_id: int, count: int) -> None:
    answers: list[list[str]] = []
    sides.ask(f"write {ledger_id} {count}", answers.append)
    assert len(answers) == count and all(words[0] == "ack" for words in answers), answers[:3]


def java_appends_each(sides: Sides, ledger_id: int, count: int) -> None:
    """Have Java append, each entry when the one before is confirmed."""
    for _ in range(count):
        java_appends(sides, ledger_id, 1)


def ours_of(ledger_id: int) -> list[bytes]:
    return [*(payload(ledger_id, entry) for entry in range(COUNT)), LARGE]


def we_write(sides: Sides) -> bk_core.WriteHandle:
    """Write a run, then entry by entry, then a large entry. The ledger stays open."""
    writer = sides.client.create_ledger(**THREE, password=PASSWORD)
    payloads = ours_of(writer.ledger_id)
    writer.append_many(payloads[: COUNT // 2])
    for future in [writer.append_future(one) for one in payloads[COUNT // 2 :]]:
        future.result(_JAVA_S)
    return writer


def write(sides: Sides) -> str:
    with we_write(sides) as writer:
        assert writer.last_add_confirmed == COUNT
    sides.closed["ours"] = writer.ledger_id
    return ""


def write_by_java(sides: Sides) -> str:
    ledger_id = java_writes(sides)
    assert sides.ask(f"close {ledger_id}")[1] == str(COUNT - 1)
    sides.closed["java"] = ledger_id
    return ""


def read(sides: Sides) -> str:
    """Read our own ledger, and Java's."""
    ours = sides.closed["ours"]
    with sides.client.open_ledger(ours, password=PASSWORD) as reader:
        assert reader.is_closed and reader.read(0, COUNT) == ours_of(ours)
    if sides.java is not None:
        java = sides.closed["java"]
        with sides.client.open_ledger(java, password=PASSWORD) as reader:
            assert reader.is_closed and reader.read(0, reader.last_add_confirmed) == [payload(java, entry) for entry in range(COUNT)]
    return ""


def read_by_java(sides: Sides) -> str:
    """Have Java read our ledger."""
    java_reads(sides, sides.closed["ours"], ours_of(sides.closed["ours"]))
    return ""


def java_reads(sides: Sides, ledger_id: int, payloads: list[bytes]) -> None:
    """Compare what Java sees of a closed ledger."""
    _, last, closed, *joined = sides.ask(f"read {ledger_id}")
    assert (int(last), closed) == (len(payloads) - 1, "1")
    assert base64.b64decode("".join(joined)) == digests(payloads)


def recover(sides: Sides) -> str:
    """Fence and close what a writer of Java's, or of ours, has left, which then is told so."""
    if sides.java is None:
        writer = we_write(sides)
        with sides.client.recover_ledger(writer.ledger_id, password=PASSWORD) as recovered:
            assert recovered.read(0, recovered.last_add_confirmed) == ours_of(writer.ledger_id)
        return _is_fenced(writer)
    left = java_writes(sides)
    with sides.client.recover_ledger(left, password=PASSWORD) as recovered:
        assert recovered.read(0, recovered.last_add_confirmed) == [payload(left, entry) for entry in range(COUNT)]
    assert sides.client.ledger_metadata(left).state is LedgerState.CLOSED
    late: list[list[str]] = []
    sides.ask(f"write {left} 1", late.append)
    assert late == [["nack", str(COUNT), _JAVA_FENCED]], late
    return ""


def _is_fenced(writer: bk_core.WriteHandle) -> str:
    try:
        writer.append(b"too late")
    except LedgerFencedError:
        return ""
    finally:
        writer.abandon()
    raise AssertionError("a writer whose ledger is closed may go on")


def recover_by_java(sides: Sides) -> str:
    """Have Java fence and close what a writer of ours has left, which then is told so."""
    writer = we_write(sides)
    assert sides.ask(f"recover {writer.ledger_id}")[1] == str(COUNT)
    java_reads(sides, writer.ledger_id, ours_of(writer.ledger_id))
    return _is_fenced(writer)


class Follower:
    """A thread that waits for the entries of an open ledger, from those that are not confirmed yet."""

    def __init__(self, sides: Sides, ledger_id: int) -> None:
        self.found: dict[int, bytes] = {}
        self.error: BaseException | None = None
        self.came = threading.Event()
        self._reader = sides.client.open_ledger(ledger_id, password=PASSWORD)
        self.first = self._reader.last_add_confirmed + 1
        self._thread = threading.Thread(target=self._follow, name="follower")

    def _follow(self) -> None:
        try:
            for run in self._reader.tail(self.first):
                self.found |= {run.first_entry_id + at: bytes(one) for at, one in enumerate(run.payloads())}
                self.came.set()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._thread.join(_JAVA_S)


def long_poll(sides: Sides) -> str:
    """Wait for entries of a ledger of ours and of one of Java's, until polls have ended in vain, and get those that are written then."""
    with we_write(sides) as writer, ExitStack() as stack:
        left = None if sides.java is None else java_writes(sides)
        before = _polls(sides)
        ours = stack.enter_context(Follower(sides, writer.ledger_id))
        theirs = None if left is None else stack.enter_context(Follower(sides, left))
        until(lambda: _polls(sides) >= before + 2, "nobody polls")
        beside = None if left is None else sides.pool.submit(java_appends_each, sides, left, 2)
        writer.append(b"later")
        writer.append(b"and last")  # which tells bookies that the one before is confirmed
        until(lambda: COUNT + 1 in ours.found, f"nothing came: {ours.error}")
        assert ours.found[COUNT + 1] == b"later"
        if beside is not None and theirs is not None and left is not None:
            beside.result(_JAVA_S)
            until(lambda: COUNT in theirs.found, f"nothing came of Java's: {theirs.error}")
            assert theirs.found[COUNT] == payload(left, COUNT)
        return f"{_polls(sides) - before} polls"


def _polls(sides: Sides) -> int:
    found = sides.client.metrics().value("bookkeeper_client_bookie_request_seconds", operation="long_poll")
    return int(found.count)
