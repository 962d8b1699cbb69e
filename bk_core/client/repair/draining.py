"""Empties bookies: moves every fragment off one, alive or dead, and forgets it if that is wanted (RR-14)."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bk_core.client.inspect import found_ledgers
from bk_core.client.repair.jobs import repair_if_there
from bk_core.client.repair.report import DecommissionReport, RepairOptions, RepairReport, StillNamed
from bk_core.display.words import counted, host_and_port, host_port, meet
from bk_core.errors import (
    BkError,
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bk_core.metadata.service_info import address_of
from bk_core.metadata.store import BookieView
from bk_core.protocol.ledger.metadata import BookieId, LedgerState
from bk_core.protocol.ledger.replication import DrainStep, after_look
from bk_core.threads import Flag

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

CONNECT_S = 2.0
"""The time within which a process that runs takes a connection."""
ENDS_S, ENDS_POLL_S = 10.0, 0.2
"""The time that a bookie has to end after it has taken its registration away, and the pause between two looks at it."""
LOOKS_AGAIN_MAX = 2
"""The looks at all ledgers that are made again when the time is over, because the bookie was writable during the one before."""
GONE_S = 5.0
"""The time for which a bookie's address has to refuse connections, before its cookie is deleted and after it. Embedded bookies and Apache's
that restart listen again by then."""


def decommission_bookie(
    client: BookKeeper,
    bookie: BookieId,
    options: RepairOptions,
    *,
    wait_s: float = 0.0,
    delete_cookie: bool = False,
    stopped: bool = False,
    on_ledger: Callable[[int, int, int], None] | None = None,
    on_empty: Callable[[], None] | None = None,
    on_change: Callable[[RepairReport], None] | None = None,
) -> DecommissionReport:
    """Repair every ledger that names ``bookie`` away from it, in rounds: one at least, more until none does or ``wait_s`` is over (RR-14).

    The report comes from a last look at all ledgers, after the last repair: it names those that still name the bookie, and which of these
    are being written to it. ``on_ledger(number, of, ledger_id)`` is called before each, and ``on_change`` after each that was changed.

    The cookie is deleted only if nothing names the bookie and its process has ended. A registration that has lapsed does not prove that,
    because a process that is frozen or cut off goes on later. So its address has to refuse connections for ``GONE_S`` seconds, because a
    bookie that restarts refuses them for a moment; or another bookie has to be registered there. Where nobody can tell, the cookie stays
    unless the caller vouches for it (``stopped``). With ``delete_cookie``, a bookie that is empty and still runs has until ``wait_s`` is
    over to be stopped: ``on_empty()`` is called when that wait begins. Meanwhile this client places nothing on the bookie, but other
    clients do as long as it is registered as writable, so it should be made read-only or stopped before.

    Raises InvalidArgumentError for a bookie that nobody knows, because a mistyped id would look like a finished job, and for ``stopped``
    without ``delete_cookie``.
    """
    if stopped and not delete_cookie:
        raise InvalidArgumentError("stopped=True vouches that the cookie may be deleted: give delete_cookie=True, too")
    client.store.check_cluster()
    if delete_cookie and (why := client.store.unregistered()):
        text = f"it cannot be told whether bookie {bookie} is down, so its cookie is not deleted: {why}"
        raise InvalidArgumentError(f"{text}; leave delete_cookie out, and call client.delete_cookie when it is stopped", bookie=bookie)
    options = replace(options, lost=options.lost | {bookie}, only_lost=True)
    report = DecommissionReport(bookie)
    deadline = time.monotonic() + wait_s
    process = _Process(client, bookie)
    with client._session.without(bookie):
        drain = partial(_drain, client, report, options, _Told(on_ledger, on_change), deadline)
        drain(known=False)
        process.is_registered()  # it may have moved meanwhile
        if delete_cookie and report.is_complete and report.registered and time.monotonic() < deadline:
            if on_empty is not None:
                on_empty()
            _await_stop(process, deadline)
            drain()  # it may have been writable for a moment
        if delete_cookie:
            _forget(process, report, drain, deadline, stopped=stopped)
    return report


def _forget(process: _Process, report: DecommissionReport, drain: Callable[[], None], deadline: float, *, stopped: bool) -> None:
    """Delete the cookie if nothing names the bookie and its process has ended; note in the report why not."""
    while report.is_complete and not report.registered:
        end = _await_end(process, max(deadline, time.monotonic() + ENDS_S), 0.0 if stopped else GONE_S)
        report.runs_at = process.address if end is _End.NOT else None
        if end is not _End.SILENT:
            drain()  # one that was frozen may have gone on, and taken ledgers
        if end is not _End.BACK:
            break
    if report.is_complete and not report.registered and report.runs_at is None:
        if stopped or not process.unseen:
            report.cookie_deleted = process.client.delete_cookie(process.bookie) if stopped else _delete_cookie(process, report)
        elif process.bookie in process.client.store.cookies():
            report.unseen = process.unseen


def _delete_cookie(process: _Process, report: DecommissionReport) -> bool:
    """Delete the cookie and return True; return False if there is none, or if the process is there within ``GONE_S`` seconds. It was
    starting, and had looked at its cookie already, so it gets that back: it would go on without it, and not start again. An interrupt in
    these seconds puts the cookie back as well."""
    store = process.client.store
    try:
        kept = store.read_cookie(process.bookie).data
    except NoNodeError:
        return False
    try:
        process.client.delete_cookie(process.bookie)
    except BkError:
        raise
    except BaseException:  # an interrupt, which may strike when it is deleted already
        _put_back(process, kept)
        raise
    is_gone = False
    try:
        is_gone = _stays_away(process, report)
    except MetadataUnavailableError as error:
        is_gone = True
        text = f"the cookie of bookie {process.bookie} is deleted, and whether it was starting right then could not be seen"
        raise error.retold(f"{text}: {error.args[0]}") from None
    finally:
        if not is_gone:
            _put_back(process, kept)
    return is_gone


def _put_back(process: _Process, cookie: bytes) -> None:
    """Write the cookie again unless it is there. An error of the store says how that is done by hand."""
    try:
        process.client.store.write_cookie(process.bookie, cookie, None)
    except NodeExistsError:
        pass
    except BkError as error:
        text = f"the cookie of bookie {process.bookie} is deleted and could not be put back: {error.args[0]}"
        by_hand = f"`bk bookie cookie put {process.bookie} FILE` does it, with current/VERSION of one of its directories"
        raise error.retold(f"{text}; if the bookie is to start again, {by_hand}") from None


def _stays_away(process: _Process, report: DecommissionReport) -> bool:
    """Return True if the process is not seen for ``GONE_S`` seconds, and note in the report how it is back otherwise."""
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        is_running, view = process.look() is _Sign.RUNS, process.client.store.bookies()
        report.registered, report.writable = process.bookie in view.registered, process.bookie in view.writable
        if is_running or report.registered:
            report.runs_at = None if report.registered else process.address
            return False
        time.sleep(ENDS_POLL_S)
    return True


class _Sign(Enum):
    """The sign that the address of a bookie gives. RUNS: the system there takes a connection, as it does for a process that is stopped by a
    signal. REFUSES: no process listens there. REPLACED: another bookie is registered there. NONE: nobody can tell."""

    RUNS = auto()
    REFUSES = auto()
    REPLACED = auto()
    NONE = auto()


class _Process:
    """The process of a bookie, as far as others see it. ``address`` is where the bookie was registered last, None if nobody knows;
    ``unseen`` is the reason why nobody can tell whether the process has ended, "" where that is known."""

    def __init__(self, client: BookKeeper, bookie: BookieId) -> None:
        self.client, self.bookie = client, bookie
        self.address: tuple[str, int] | None = None
        self.unseen = "nobody knows where it was: its id is no address"
        if not self.is_registered():
            self.address = host_and_port(bookie)

    def is_registered(self) -> bool:
        """Return True if it is registered now, and note where, also where another bookie is registered, too."""
        there = self.bookie in self.client.store.bookies().registered
        found = self.client.store.registration(self.bookie) if there else None
        if found is not None:
            with suppress(BookieUnavailableError):
                self.address = address_of(self.bookie, found.data)
        return there

    def look(self) -> _Sign:
        """Look at its address, and note in ``unseen`` why that proves nothing."""
        if self.address is None:
            return _Sign.NONE
        self.unseen = ""
        try:
            socket.create_connection(self.address, CONNECT_S, all_errors=True).close()
        except ExceptionGroup as group:  # a name may have several addresses, and the process may be at any of them
            silent = [error for error in group.exceptions if not isinstance(error, ConnectionRefusedError)]
            self.unseen = self._silence(silent[0]) if silent else ""
        except (OSError, ValueError, OverflowError) as error:
            self.unseen = self._silence(error)
        else:
            return _Sign.REPLACED if self._is_anothers() else _Sign.RUNS
        return _Sign.NONE if self.unseen else _Sign.REFUSES

    def _silence(self, error: Exception) -> str:
        assert self.address is not None
        return f"nothing answers at {host_port(*self.address)} ({error}), as where a host is gone or cut off"

    def _is_anothers(self) -> bool:
        assert self.address is not None
        for other in self.client.store.bookies().registered - {self.bookie}:
            with suppress(BookieUnavailableError):
                if meet(self.address, self.client.store.resolve(other)):
                    return True
        return False


class _End(Enum):
    """The end of a process as it was awaited. SILENT: nobody has seen it run. SEEN: it ran before, so that it may have taken ledgers.
    NOT: it runs. BACK: it is registered again."""

    SILENT = auto()
    SEEN = auto()
    NOT = auto()
    BACK = auto()


def _await_end(process: _Process, ends: float, gone_s: float) -> _End:
    """Wait until the address has refused connections for ``gone_s`` seconds, or shows at once that there is nothing to wait for. A process
    that still runs at ``ends`` is waited for no longer, and one that registers again not at all."""
    was_writable = _Sightings(process.client, process.bookie)
    refuses_since, has_run = math.inf, False
    try:
        was_writable.begin()
        while True:
            sign, now = process.look(), time.monotonic()
            has_run = has_run or sign is _Sign.RUNS
            refuses_since = min(refuses_since, now) if sign is _Sign.REFUSES else math.inf
            if process.is_registered():
                return _End.BACK
            if sign is _Sign.RUNS and now >= ends:
                return _End.NOT
            if sign in (_Sign.REPLACED, _Sign.NONE) or now - refuses_since >= gone_s:
                return _End.SEEN if has_run or was_writable.since() is not _Seen.NOT else _End.SILENT
            time.sleep(ENDS_POLL_S)
    finally:
        was_writable.end()


def check_room(client: BookKeeper, bookie: BookieId) -> None:
    """Raise NotEnoughBookiesError if a fragment that names the bookie has all other writable bookies already: nobody could take its copies
    then, and a writer of the ledger could not go on without it. Ledgers that nobody understands are passed over."""
    others = set(client.store.bookies().writable) - {bookie}
    held = 0
    for found in found_ledgers(client, client.list_ledgers()):
        fragments = () if found.metadata is None else found.metadata.fragments
        held += any(bookie in one.ensemble and others <= set(one.ensemble) for one in fragments)
    if held:
        named = f"{counted(held, 'ledger')} {'has' if held == 1 else 'have'} all writable bookies ({len(others)} more) in a fragment"
        text = f"bookie {bookie} stays writable: {named}, so no bookie could take its copies; add one first"
        raise NotEnoughBookiesError(text, bookie=bookie)


class _Told(NamedTuple):
    """The functions of the caller that are told of each ledger, before its repair and after one that changed it."""

    on_ledger: Callable[[int, int, int], None] | None
    on_change: Callable[[RepairReport], None] | None


def _drain(
    client: BookKeeper,
    report: DecommissionReport,
    options: RepairOptions,
    told: _Told,
    deadline: float,
    *,
    known: bool = True,
) -> None:
    """Make the rounds, and note what names the bookie afterwards, and how it is registered. The last look begins when the bookie takes no
    new ledgers any more, or ends while it still does (RR-14). Unless it is ``known``, a bookie that nobody knows is an error."""
    bookie, rounds, looks, changed = report.bookie, 0, 0, False
    sightings = _Sightings(client, bookie)
    try:
        while True:
            sightings.begin()
            report.still_named = [found for ledger_id in client.list_ledgers() if (found := _naming(client, ledger_id, bookie)) is not None]
            if not known and not rounds and not report.still_named:
                check_known(client, bookie, "no ledger names it, ")
            left_s = deadline - time.monotonic()
            match after_look(rounds=rounds, named=len(report.still_named), changed=changed, left_s=left_s):
                case DrainStep.END:
                    client.store.check_cluster()  # a store that was emptied meanwhile names the bookie in no ledger either (OWN-2)
                    view = client.store.bookies()
                    report.writable, report.registered = bookie in view.writable, bookie in view.registered
                    seen = sightings.since()
                    if report.still_named or report.writable or seen is _Seen.NOT:
                        return
                    # It took ledgers while the look was under way, and the look may have passed their places by then. So there is
                    # another one, but what happens again and again keeps nobody for ever.
                    looks += 1
                    if left_s <= 0 and looks > LOOKS_AGAIN_MAX:
                        sightings.tell(seen)
                        report.writable = True
                        return
                case DrainStep.WAIT:
                    time.sleep(min(1.0, left_s))
                    changed = True  # perhaps, because writers replace bookies by themselves
                case DrainStep.REPAIR:
                    changed = _drain_round(client, report, options, told, deadline if rounds else None)
                    rounds += 1
    finally:
        sightings.end()


class _Seen(Enum):
    """The sight of a bookie for a while. NOT: it was not writable. WRITABLE: it was, if only for a moment. UNKNOWN: the connection to
    the metadata store was lost, and what came and went meanwhile was told to nobody."""

    NOT = auto()
    WRITABLE = auto()
    UNKNOWN = auto()


class _Sightings:
    """Notes if a bookie is registered as writable for a moment, as one is that somebody starts and stops again."""

    def __init__(self, client: BookKeeper, bookie: BookieId) -> None:
        self._store, self._bookie = client.store, bookie
        self._seen, self._losses = False, 0
        self._watch = client.store.watch_bookies(self._note)

    def _note(self, view: BookieView) -> None:
        self._seen = self._seen or self._bookie in view.writable

    def begin(self) -> None:
        """Begin anew, with what is now."""
        self._seen, self._losses = False, self._store.losses()
        self._note(self._store.bookies())

    def since(self) -> _Seen:
        """Return what was seen since ``begin``."""
        self._watch.refresh()
        if self._seen:
            return _Seen.WRITABLE
        return _Seen.NOT if self._store.losses() == self._losses else _Seen.UNKNOWN

    def tell(self, seen: _Seen) -> None:
        """Raise MetadataUnavailableError if nobody can know what happened during the looks."""
        if seen is _Seen.UNKNOWN:
            text = f"the connection to the metadata store was lost during each look at all ledgers, so bookie {self._bookie} may be named"
            raise MetadataUnavailableError(f"{text} by some that were not seen; run it again when the connection lasts")

    def end(self) -> None:
        self._watch.cancel()


def _await_stop(process: _Process, deadline: float) -> None:
    """Wait until a bookie is registered no more, or the time is over."""
    changed = Flag()
    watch = process.client.store.watch_bookies(lambda _: changed.set())
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            changed.clear()
            if not process.is_registered():
                return
            changed.wait(min(5.0, left_s))
    finally:
        watch.cancel()


def check_known(client: BookKeeper, bookie: BookieId, known: str = "") -> None:
    """Raise InvalidArgumentError if the bookie is not registered and has no cookie. ``known`` is what else the error says of it."""
    view = client.bookies()
    if bookie in view.registered:
        return
    try:
        client.store.read_cookie(bookie)
    except NoNodeError:
        text = f"there is no bookie {bookie}: {known}it is not registered and has no cookie"
        raise InvalidArgumentError(text, bookie=bookie) from None


def _drain_round(
    client: BookKeeper,
    report: DecommissionReport,
    options: RepairOptions,
    told: _Told,
    deadline: float | None,
) -> bool:
    """Make one round and return True if a repair changed anything. No repair is begun after ``deadline``."""
    changed = False
    named = report.named_by
    for number, ledger_id in enumerate(named, 1):
        if deadline is not None and time.monotonic() >= deadline:
            break
        if told.on_ledger is not None:
            told.on_ledger(number, len(named), ledger_id)
        if deadline is not None:
            options = replace(options, lock_wait_s=min(options.lock_wait_s, max(0.0, deadline - time.monotonic())))
        repaired = repair_if_there(client, ledger_id, options)  # it may have been deleted since the look
        changed = changed or repaired.changed
        report.note(repaired)
        if repaired.changed and told.on_change is not None:
            told.on_change(repaired)
    return changed


def _naming(client: BookKeeper, ledger_id: int, bookie: BookieId) -> StillNamed | None:
    """Return how a ledger's metadata names the bookie, None if it does not."""
    try:
        metadata = client.ledger_metadata(ledger_id)
    except NoSuchLedgerError:
        client.store.check_cluster()
        return None
    except MetadataFormatError as error:
        return StillNamed(ledger_id, problem=str(error.args[0]))
    if not any(bookie in fragment.ensemble for fragment in metadata.fragments):
        return None
    written = metadata.state is LedgerState.OPEN and bookie in metadata.last_fragment.ensemble
    log = metadata.custom.get("log")
    return StillNamed(ledger_id, metadata.state, written, None if log is None else log.decode(errors="replace"))
