"""Frames to the client: bookies whose answers are bent, on real sockets (README.md).

A case is a seed and a number. Half of the cases put raw requests on one BookieLink and look at that link; the others use a client as a
program does. What must hold whatever is sent:

* every request is answered once, in bounded time, and nothing raises but a BkError;
* bytes that are no frames of the protocol end the connection, and only those do so as a protocol error;
* whatever is read is what was written; while an honest replica has it, it is read;
* what was acknowledged stands on an honest bookie; a ledger is never closed below it.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bk_core
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.client.client import BookKeeper
from bk_core.errors import BkError, RemoteProtocolError, UnauthorizedError
from bk_core.metadata import open_store
from bk_core.net.link import BookieLink
from bk_core.net.link_state import RECEIVE_SLACK_BYTES
from bk_core.net.reactor import Reactor
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire import connection as wire
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BodyCheck
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX, FrameReader
from bk_core.protocol.wire.messages import Status
from tests.fuzz.bent_bookie import BentBookie
from tests.fuzz.cases import play_cases
from tests.fuzz.doorways import Doorway

MS = 1_000_000
PASSWORD = b"pw"
PAYLOADS = [b"%d " % n * (1 + n % 9) for n in range(60)] + [b"x" * 70_000, b"", b"y" * 300_000]
LIMITS = Limits(
    add_timeout_ns=300 * MS,
    read_timeout_ns=300 * MS,
    speculative_read_ns=50 * MS,
    long_poll_ns=50 * MS,
    tail_pause_ns=10 * MS,
    add_retry_ns=10 * MS,
    placement_retry_ns=20 * MS,
    recovery_retry_ns=20 * MS,
    recovery_retries_max=3,
    metadata_retry_ns=10 * MS,
    replication_retry_ns=10 * MS,
    replication_retries_max=2,
    read_chunk_entries=16,
)
OPERATION_TIMEOUT_S = 5.0
UNANSWERED_MAX = 4  # plays of a case, before honest bookies that did not answer in time count
BOUND_S = 20.0  # of any call: several operations, each with several timeouts, on a busy machine


@dataclass(slots=True)
class Result:
    """``inputs``: frames that bookies sent, bent or not. ``crashes``: one text for each case that went wrong."""

    cases: int = 0
    inputs: int = 0
    crashes: list[str] = field(default_factory=list)


class Wrong(Exception):
    """Something that must hold does not."""


class Unanswered(Wrong):
    """Honest bookies did not answer in time: a defect, or a machine too busy for the short timeouts of these cases."""


class Alarms(logging.Handler):
    """Exceptions that were caught where nothing should have been raised, and threads that ended by one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.protocol_errors = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
        elif "broke the protocol" in record.msg:
            self.protocol_errors += 1

    def died(self, arguments: threading.ExceptHookArgs) -> None:
        self.found.append(f"thread {arguments.thread and arguments.thread.name} died: {arguments.exc_value!r}")

    @contextmanager
    def listening(self) -> Iterator[Alarms]:
        logger, hook = logging.getLogger("bk_core"), threading.excepthook
        logger.addHandler(self)
        threading.excepthook = self.died
        try:
            yield self
        finally:
            logger.removeHandler(self)
            threading.excepthook = hook


class Routed:
    """The store as a client sees it for whom some bookies are elsewhere."""

    def __init__(self, inner: Any, routes: dict[str, tuple[str, int]]) -> None:
        self._inner, self._routes = inner, routes

    def resolve(self, bookie: str) -> Any:
        return self._routes.get(bookie) or self._inner.resolve(bookie)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class World:
    """Four bookies in this process, each with somebody in front of it who may bend its answers, and two ledgers on three of them. With a
    ``doorway`` the bookies ask who comes, and ``bent_at`` makes who is in front of the bookie at a port."""

    def __init__(self, directory: Path, doorway: Doorway | None = None, bent_at: Callable[[int], BentBookie] = BentBookie) -> None:
        self.uri = f"memory://fuzz-{directory.name}"
        self._security = None if doorway is None else doorway.security()
        self.alarms = Alarms()
        with ExitStack() as opened:
            store = open_store(self.uri)
            opened.callback(store.close)
            store.initialize_cluster()
            options = BookieOptions() if doorway is None else BookieOptions(door=doorway.door, security=self._security)
            self.bookies = [EmbeddedBookie(directory / str(n), "127.0.0.1", 0, store, options).start() for n in range(4)]
            for bookie in self.bookies:
                opened.callback(bookie.close)
            self.bent = {bookie.bookie_id: bent_at(bookie.port) for bookie in self.bookies}
            for bent in self.bent.values():
                opened.callback(bent.close)
            self.clean = opened.enter_context(bk_core.connect(self.uri, security=self._security))
            with self.clean.create_ledger(password=PASSWORD, digest_type="MAC") as writer:
                writer.append_many(PAYLOADS)
            self.closed = writer.ledger_id
            with self.clean.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2, password=PASSWORD) as writer:
                writer.append_many(PAYLOADS)
            self.striped = writer.ledger_id
            self.open = self.clean.create_ledger(password=PASSWORD)
            for payload in PAYLOADS:
                self.open.append(payload)
            self.reactor = Reactor("fuzz-link")
            opened.callback(self.reactor.close)
            opened.enter_context(self.alarms.listening())
            self._opened = opened.pop_all()

    def close(self) -> None:
        self.open.close()
        self._opened.close()

    def connect(self, protocol: str, bent: list[str]) -> BookKeeper:
        routes = {bookie: ("127.0.0.1", self.bent[bookie].port) for bookie in bent}
        store: Any = Routed(open_store(self.uri), routes)
        settings: dict[str, Any] = {"limits": LIMITS, "operation_timeout_s": OPERATION_TIMEOUT_S, "quarantine_s": 0.0}
        # Without it a writer goes from one bookie that hangs in its handshake to the next one and back, for as long as nobody stops it.
        settings["add_quorum_timeout_s"] = OPERATION_TIMEOUT_S
        return bk_core.connect(self.uri, protocol=protocol, store=store, security=self._security, **settings)

    def frames_sent(self) -> int:
        return sum(connection.frames for bent in self.bent.values() for connection in bent.connections)


# --- cases ----------------------------------------------------------------------------------------------------------------


def play(world: World, seed: int, case: int) -> int:
    """One case; the number of frames that bookies sent. Wrong, with what happened, if something that must hold does not."""
    rng = random.Random(f"{seed} {case}")
    world.alarms.found.clear()
    world.alarms.protocol_errors = 0
    try:
        (_on_a_link if case % 2 else _with_a_client)(world, rng)
        frames = world.frames_sent()
    finally:
        for bent in world.bent.values():
            bent.begin(random.Random(0), "v2", rate=0.0)
    if world.alarms.found:
        raise Wrong("; ".join(world.alarms.found))
    return frames


def _within(seconds: float, what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {seconds:g} s")
        time.sleep(0.001)


# --- one link -------------------------------------------------------------------------------------------------------------


class _Listener:
    """Waits for adds. Any ids may come, because the answers of v2 name nothing else."""

    needs_connection = False

    def on_add(self, bookie: str, first_entry_id: int, count: int, status: Status, entries: int | None) -> None:
        if count < 1:
            raise Wrong(f"{count} answers to adds")

    def on_lost(self, bookie: str, status: Status) -> None:
        pass


def _on_a_link(world: World, rng: random.Random) -> None:
    protocol = rng.choice(("v2", "v3"))
    bookie = rng.choice(sorted(world.clean.ledger_metadata(world.closed).fragments[0].ensemble))
    bent = world.bent[bookie]
    bent.begin(rng, protocol, rate=rng.choice((0.1, 0.5, 1.0)), swallow=rng.choice((0.0, 0.0, 0.3)))
    answers: list[list[Status]] = []
    made: list[BookieLink] = []
    asked = [_request(world, rng, protocol) for _ in range(rng.randrange(1, 9))]
    adds = _adds(world, rng) if rng.random() < 0.4 else None

    def begin() -> None:
        link = BookieLink(world.reactor, bookie, protocol, lambda _, then: then(("127.0.0.1", bent.port), ""), FRAME_BYTES_MAX)  # type: ignore[arg-type]
        made.append(link)
        if adds is not None:
            link.listen(adds.ledger_id, _Listener())
            link.send_adds(adds, 0, 0, 1, 1)
        for message in asked:
            answered: list[Status] = []
            answers.append(answered)
            link.request(message, LIMITS.read_timeout_ns, lambda status, response, to=answered: to.append(status))  # type: ignore[misc]

    world.reactor.post(begin)
    try:
        _within(BOUND_S, f"answers to {asked}", lambda: len(answers) == len(asked) and all(answers))
        _judge_connections(world, bent)
    finally:
        closed = threading.Event()

        def end() -> None:
            for link in made:
                link.close()
            closed.set()

        world.reactor.post(end)
        if not closed.wait(BOUND_S):
            raise Wrong("the reactor stands still")
    if any(len(answered) != 1 for answered in answers):
        raise Wrong(f"answers to {asked}: {answers}")


def _judge_connections(world: World, bent: BentBookie) -> None:
    """Bytes that are no frame of the protocol end their connection; a protocol error is told only of such bytes."""
    errors = world.alarms.protocol_errors  # before the bytes are looked at: what is wrong of them may still be on its way
    wrong = [(one, why) for one in bent.connections if (why := _verdict(bytes(one.sent), one.bender.protocol)) is not None]
    for one, why in wrong:
        if not one.client_gone.wait(5.0):
            raise Wrong(f"{why}, and the connection stays ({one.bender.bends})")
    if errors > len(wrong):
        raise Wrong(f"{errors} protocol errors, {len(wrong)} connections with wrong bytes")


def _verdict(sent: bytes, protocol: str) -> str | None:
    """Return the reason why a client that reads one frame after the other hangs up, or None."""
    reader = FrameReader(FRAME_BYTES_MAX + RECEIVE_SLACK_BYTES)
    try:
        for payload in reader.feed(sent):
            wire.decode_response(bytes(payload), protocol)  # type: ignore[arg-type]
    except RemoteProtocolError as error:
        return str(error)
    return None


def _request(world: World, rng: random.Random, protocol: str) -> m.Request:
    ledger_id = rng.choice((world.closed, world.closed, world.striped, world.open.ledger_id, 4711))
    first = rng.choice((0, 0, 3, 40, len(PAYLOADS) - 2, len(PAYLOADS) - 1, len(PAYLOADS), 2**40))
    kinds: list[Callable[[], m.Request]] = [
        lambda: m.ReadRequest(0, ledger_id, rng.choice((first, -1))),
        lambda: m.ReadRunRequest(0, ledger_id, first, rng.randrange(1, 40), rng.choice((1, 1, 3))),
    ]
    if protocol == "v2":
        key = digests.hmac_key(PASSWORD)
        check = BodyCheck(int(DigestType.MAC), key) if rng.random() < 0.7 else None
        kinds += [lambda: m.BatchReadRequest(0, ledger_id, first, rng.randrange(1, 60), 1 << 20, check=check)] * 2
    else:
        kinds += [
            lambda: m.ReadRequest(0, ledger_id, first, previous_lac=first - 1, timeout_ms=20, piggyback=rng.random() < 0.5),
            lambda: m.ReadLacRequest(0, ledger_id),
            lambda: m.BookieInfoRequest(0),
            lambda: m.EntryListRequest(0, ledger_id),
            lambda: m.ForceLedgerRequest(0, ledger_id),
        ]
    return rng.choice(kinds)()


def _adds(world: World, rng: random.Random) -> PackedAdds:
    """Adds of a ledger of this case alone, so that nothing is written twice with other bytes."""
    from array import array

    from bk_core.protocol.wire import codec_v2

    ledger_id = world.clean.store.new_ledger_id() + 1_000_000
    frames = []
    for entry_id in range(rng.randrange(1, 30)):
        body = layout.encode_body(ledger_id, entry_id, -1, entry_id + 1, b"z", DigestType.CRC32C)
        frames.append(codec_v2.frame(codec_v2.encode_request(m.AddRequest(0, ledger_id, entry_id, digests.master_key(b""), body))))
    offsets = array("q", [0])
    for frame in frames:
        offsets.append(offsets[-1] + len(frame))
    return PackedAdds(ledger_id, 0, len(frames), b"".join(frames), memoryview(offsets), False)


# --- a client -------------------------------------------------------------------------------------------------------------


def _with_a_client(world: World, rng: random.Random) -> None:
    protocol = rng.choice(("v2", "v3"))
    ensemble = sorted(world.clean.ledger_metadata(world.closed).fragments[0].ensemble)
    honest = rng.random() < 0.7  # all but one
    bent = [rng.choice(ensemble)] if honest else ensemble
    for bookie in bent:
        world.bent[bookie].begin(rng, protocol, rate=rng.choice((0.1, 0.5, 1.0)), swallow=rng.choice((0.0, 0.0, 0.3)))
    what = rng.choice((_reads, _reads, _reads_open, _writes, _recovers, _tails, _checks))
    done: list[BaseException | None] = []

    def work() -> None:
        try:
            with world.connect(protocol, bent) as client:
                what(world, rng, client, bent)
        except BaseException as error:
            done.append(error)
        else:
            done.append(None)

    thread = threading.Thread(target=work, name="fuzz-case", daemon=True)
    thread.start()
    thread.join(4 * BOUND_S)
    if not done:
        raise Wrong(f"{what.__name__} over {protocol} with {len(bent)} bent bookies: not within {4 * BOUND_S:g} s")
    if done[0] is not None:
        raise (Unanswered if isinstance(done[0], Unanswered) else Wrong)(
            f"{what.__name__} over {protocol} with {len(bent)} bent bookies: {done[0]!r}"
        ) from done[0]


def _range(rng: random.Random, last: int = len(PAYLOADS) - 1) -> tuple[int, int]:
    first = rng.randrange(last + 1)
    return first, rng.randrange(first, last + 1)


def _timed(call: Callable[[], Any]) -> Any:
    """The result, or the BkError it raised."""
    begun = time.monotonic()
    try:
        result = call()
    except BkError as error:
        result = error
    if time.monotonic() - begun > BOUND_S:
        raise Wrong(f"took {time.monotonic() - begun:.1f} s: {result!r}"[:300])
    return result


def _must_be(found: Any, wanted: list[bytes], bent: list[str]) -> None:
    """The truth, or where nobody is honest an error."""
    if isinstance(found, BkError):
        if len(bent) == 1:
            raise Unanswered(f"two honest replicas, and yet {found}")
    elif found != wanted:
        raise Wrong(f"read {len(found)} entries that are not what was written")


def _reads(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    striped = rng.random() < 0.3
    found = _timed(lambda: client.open_ledger(world.striped if striped else world.closed, password=PASSWORD))
    if isinstance(found, BkError):
        raise Wrong(f"a CLOSED ledger needs no bookie to be opened: {found}")
    with found as reader:
        for _ in range(rng.randrange(1, 4)):
            first, last = _range(rng)
            _must_be(_timed(lambda f=first, t=last: reader.read(f, t)), PAYLOADS[first : last + 1], bent)  # type: ignore[misc]


def _reads_open(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    found = _timed(lambda: client.open_ledger(world.open.ledger_id, password=PASSWORD))
    if isinstance(found, BkError):
        if len(bent) == 1 and not isinstance(found, UnauthorizedError):  # one "unauthorized" is believed (LC-1)
            raise Unanswered(f"two honest replicas, and yet {found}")
        return
    with found as reader:
        first, last = _range(rng, len(PAYLOADS) - 2)  # what every replica has told for long
        _must_be(_timed(lambda: list(_runs(reader, first, last))), PAYLOADS[first : last + 1], bent)
        reader.wait_for(len(PAYLOADS), 0.1)
        _timed(reader.read_last_add_confirmed)


def _runs(reader: Any, first: int, last: int) -> Iterator[bytes]:
    for run in reader.read_runs(first, last, unchecked_bound=True):
        yield from run.payloads()


def _tails(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    ledger_id = rng.choice((world.closed, world.open.ledger_id))
    found = _timed(lambda: client.open_ledger(ledger_id, password=PASSWORD))
    if isinstance(found, BkError):
        return
    with found as reader:
        first = rng.randrange(len(PAYLOADS))
        seen = _timed(lambda: [payload for run in reader.tail(first, timeout_s=0.5) for payload in run.payloads()])
        if not isinstance(seen, BkError) and seen != PAYLOADS[first : first + len(seen)]:
            raise Wrong("a tail gave what was not written")


def _writes(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    """Check that an entry acknowledged with an ack quorum of two is on an honest bookie, if only one is not."""
    acknowledged: list[int] = []
    made = _timed(lambda: client.create_ledger(password=PASSWORD, digest_type=rng.choice(("CRC32C", "MAC", "CRC32"))))
    if isinstance(made, BkError):
        raise Wrong(f"no bookie is asked at create: {made}")
    for first in range(0, 40, 10):
        future = made.append_many_future(PAYLOADS[first : first + 10])
        if isinstance(_timed(lambda f=future: f.result(2 * OPERATION_TIMEOUT_S)), BkError):  # type: ignore[misc]
            break
        acknowledged += range(first, first + 10)
    last = made.last_add_confirmed
    ended = _timed(made.close)
    if isinstance(ended, BkError):
        made.abandon()
    stored = world.clean.ledger_metadata(made.ledger_id)
    if stored.state is LedgerState.CLOSED and stored.last_entry_id < max([last, *acknowledged]):
        raise Wrong(f"closed at {stored.last_entry_id} below {max([last, *acknowledged])}, which was acknowledged")
    if len(bent) == 1:
        _stands(world, stored, made.ledger_id, acknowledged, bent)


def _stands(world: World, metadata: LedgerMetadata, ledger_id: int, entries: list[int], bent: list[str]) -> None:
    from bk_core.client.inspect import entry_headers

    good = {h.entry_id for h in entry_headers(world.clean, ledger_id, metadata, entries) if h.digest_ok and h.bookie not in bent}
    if missing := sorted(set(entries) - good):
        raise Wrong(f"entries {missing} are acknowledged and on no honest bookie")


def _recovers(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    """A ledger that a writer left: with one replica bent all of it is found again, or recovery says that it cannot tell."""
    count = rng.randrange(1, 30)
    writer = world.clean.create_ledger(password=PASSWORD)
    writer.append_many(PAYLOADS[:count])
    writer.abandon()
    found = _timed(lambda: client.recover_ledger(writer.ledger_id, password=PASSWORD))
    if not isinstance(found, BkError):
        found.close()
    stored = world.clean.ledger_metadata(writer.ledger_id)
    if stored.state is LedgerState.CLOSED and len(bent) == 1 and stored.last_entry_id != count - 1:
        raise Wrong(f"{count} entries were acknowledged, recovery closed the ledger at {stored.last_entry_id}")
    if not isinstance(found, BkError) and stored.state is not LedgerState.CLOSED:
        raise Wrong(f"recovered, and {stored.state.name}")


def _checks(world: World, rng: random.Random, client: BookKeeper, bent: list[str]) -> None:
    """The honest replicas are called good, and a repair believes nothing that it has not seen."""
    ledger_id = rng.choice((world.closed, world.striped))
    report = _timed(lambda: client.check_ledger(ledger_id, full=rng.random() < 0.5))
    if not isinstance(report, BkError):
        wrong = [one.bookie for part in report.fragments for one in part.replicas if one.bookie not in bent and not one.is_good]
        if wrong:
            raise Wrong(f"{wrong} are honest and called bad")


# --- many cases -----------------------------------------------------------------------------------------------------------


@contextmanager
def world() -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bk-fuzz-"))
    try:
        made = World(directory)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _played(made: World, seed: int, case: int) -> int:
    """``play``; a case whose honest bookies were too slow is played again, so that only what repeats itself counts."""
    for _ in range(UNANSWERED_MAX - 1):
        with suppress(Unanswered):
            return play(made, seed, case)
    return play(made, seed, case)


def run(
    *,
    seconds: float | None = None,
    seed: int = 0,
    first: int = 0,
    cases: int | None = None,
    crashes_max: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Cases ``first``, first + 1, ... until the time is over, or so many of them or of crashes were seen; crashes are told at once."""
    result = Result()
    with world() as made:
        play_cases(
            result,
            lambda case: _played(made, seed, case),
            seconds=seconds,
            seed=seed,
            first=first,
            cases=cases,
            crashes_max=crashes_max,
            say=say,
        )
    return result
