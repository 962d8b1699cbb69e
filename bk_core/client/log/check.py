"""Checks that everything is there that a log lists, writes off what is lost, and closes what a dead writer left open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bk_core.arguments import COUNT, SECRET, checked
from bk_core.client.guards import check_password
from bk_core.client.identity import carried, recover_own
from bk_core.client.log.history import ChunkCache, history_of, update_ledger_list, write_chunk
from bk_core.client.log.intents import HISTORY, create_intended, forget_intent
from bk_core.client.log.list_store import LogClient, change_ledger_list, ledger_exists, read_ledger_list, store_now_ms
from bk_core.client.log.live_writers import ALIVE, live_writers
from bk_core.display.words import counted
from bk_core.errors import (
    BkError,
    BookieSecurityError,
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    LogWriterAliveError,
    NoSuchLedgerError,
    UnauthorizedError,
    WrongPasswordError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.history import Item, Load
from bk_core.protocol.log.identity import Standing, standing
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import HistoryRef, Segment
from bk_core.protocol.log.writing_off import write_off
from bk_core.protocol.wire.messages import Status

_TRIES = 5
_REFUSALS = (Status.UNAUTHORIZED.name, Status.NOT_ADMITTED.name)


@dataclass(frozen=True, slots=True)
class LogProblem:
    """``kind``: missing, short (closed before the last listed entry), unreadable, password (it has another one), foreign (of another
    log, or of none, and not adopted), history (a chunk of it), not-admitted (bookies do not admit this client, so that nothing is known of
    what the ledger holds, RR-19).

    ``first_seq .. last_seq`` are the segments concerned, both inclusive; ``rows`` and ``bytes`` what the list says is in them.
    """

    kind: str
    ledger_id: int
    first_seq: int
    last_seq: int
    rows: int
    bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class LogCheck:
    """The result of a check; ``ledgers`` is the number of ledgers that the log names, history included."""

    log: str
    segments: int
    ledgers: int
    problems: tuple[LogProblem, ...]

    def __repr__(self) -> str:
        counts = ", ".join((counted(self.segments, "segment"), counted(self.ledgers, "ledger"), counted(len(self.problems), "problem")))
        return f"<LogCheck {self.log}: {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        return table.html(*logs.check(self))

    @property
    def is_good(self) -> bool:
        """Return True if no problem was found."""
        return not self.problems

    @property
    def is_locked(self) -> bool:
        """True if the only problem is the password of the log's ledgers."""
        return bool(self.problems) and all(problem.kind == "password" for problem in self.problems)


@dataclass(slots=True)
class _Named:
    """All that a log lists of one ledger."""

    first_seq: int
    last_seq: int
    first_entry_id: int
    last_entry_id: int | None
    live: bool
    rows: int
    bytes: int

    def add(self, segment: Segment) -> None:
        self.last_seq = segment.seq
        self.first_entry_id = min(self.first_entry_id, segment.first_entry_id)
        ends = [end for end in (self.last_entry_id, segment.last_entry_id) if end is not None]
        self.last_entry_id = max(ends, default=None)
        self.live = self.live or segment.live
        self.rows, self.bytes = self.rows + segment.rows, self.bytes + segment.bytes


class _Look:
    """One look at everything that a list names."""

    def __init__(self, client: LogClient, name: str, listed: LedgerList) -> None:
        self._client = client
        self._name = name
        self._listed = listed
        # a fresh cache, because what this process remembers proves nothing
        self._load: Load = history_of(client, name, listed.log_id, ChunkCache())
        self.problems: list[LogProblem] = []
        self.named: dict[int, _Named] = {}
        self.chunks = 0
        self._walk(listed.items)

    def _walk(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.after_seq <= self._listed.trimmed_seq:
                continue
            if isinstance(item, HistoryRef):
                self._chunk(item)
            elif item.ledger_id in self.named:
                self.named[item.ledger_id].add(item)
            else:
                ends = (item.first_entry_id, item.last_entry_id, item.live)
                self.named[item.ledger_id] = _Named(item.seq, item.seq, *ends, item.rows, item.bytes)

    def _chunk(self, ref: HistoryRef) -> None:
        self.chunks += 1
        place = (ref.ledger_id, ref.first_seq, ref.after_seq - 1, ref.rows, ref.bytes)
        try:
            chunk = self._load(ref)
            foreign = self._foreign(ref.ledger_id, self._client.ledger_metadata(ref.ledger_id).custom)
        except BkError as error:
            kind = "missing" if not ledger_exists(self._client, ref.ledger_id) else _kind(error, "history")
            self.problems.append(LogProblem(kind, *place, f"history: {error}"))
        else:
            if foreign is not None:
                self.problems.append(LogProblem(foreign[0], *place, foreign[1]))
            self._walk(chunk)

    def find(self, password: bytes, *, read: bool) -> None:
        for ledger_id, named in self.named.items():
            found = self._problem(ledger_id, named, password, read)
            if found is not None:
                span = (ledger_id, named.first_seq, named.last_seq, named.rows, named.bytes)
                self.problems.append(LogProblem(found[0], *span, found[1]))

    def _foreign(self, ledger_id: int, custom: Mapping[str, bytes]) -> tuple[str, str] | None:
        """Return the problem of a ledger that is read and listed, but neither taken over nor ever deleted for this log (OWN-6, OWN-11)."""
        adopted = ledger_id in self._listed.adopted
        if standing(custom, self._name, self._listed.log_id, adopted=adopted) is not Standing.OTHER:
            return None
        return "foreign", f"ledger {ledger_id} is not fenced or deleted for log {self._name!r}: {carried(self._name, custom)}"

    def _problem(self, ledger_id: int, named: _Named, password: bytes, read: bool) -> tuple[str, str] | None:
        try:
            metadata = self._client.ledger_metadata(ledger_id)
            foreign = self._foreign(ledger_id, metadata.custom)
            if foreign is not None:
                return foreign
            closed, last = metadata.state is LedgerState.CLOSED, named.last_entry_id
            if closed and last is not None and metadata.last_entry_id < last:
                return "short", f"ledger {ledger_id} was closed at entry {metadata.last_entry_id}, and entries up to {last} are listed"
            if read and last is not None and last >= named.first_entry_id:
                with self._client.open_ledger(ledger_id, password=password) as handle:
                    for entry in {named.first_entry_id, last}:
                        for _ in handle.read_runs(entry, entry, unchecked_bound=not closed):
                            pass
        except NoSuchLedgerError:
            return "missing", f"ledger {ledger_id} does not exist"
        except WrongPasswordError as error:
            return "password", str(error)
        except BkError as error:
            return _kind(error, "unreadable"), str(error)
        return None


def _kind(error: BkError, otherwise: str) -> str:
    """A read shows no password, so one that bookies call unauthorized was refused because of this client."""
    refused = isinstance(error, BookieSecurityError | UnauthorizedError)
    return "not-admitted" if refused or error.context.get("status") in _REFUSALS else otherwise


@checked(password=SECRET)
def check_log(client: LogClient, name: str, *, password: bytes = b"", read: bool = True) -> LogCheck:
    """Check that all ledgers that the log names, history included, exist, are this log's and are long enough.

    With ``read`` both ends of what is listed of each are read too. It fences nothing and changes nothing. Raises NoSuchLogError and
    WrongClusterError.
    """
    for _ in range(_TRIES):
        listed = read_ledger_list(client, name)
        look = _Look(client, name, listed)
        look.find(password, read=read)
        now = read_ledger_list(client, name)
        if not look.problems or (now.log_id, now.trimmed_seq) == (listed.log_id, listed.trimmed_seq):
            break  # otherwise it may have been trimmed meanwhile
    problems = tuple(sorted(look.problems, key=lambda problem: (problem.first_seq, problem.ledger_id)))
    return LogCheck(name, listed.next_seq - listed.trimmed_seq, len(look.named) + look.chunks, problems)


# --- writing off ------------------------------------------------------------------------------------------------------------


@checked(password=SECRET)
def repair_log(client: LogClient, name: str, *, password: bytes = b"", even_if_files: bool = False) -> tuple[LogProblem, ...]:
    """Write off what no longer exists, so that the log can be written and read again (GRD-5). Returns what is lost, () if nothing was.

    Segments of ledgers that do not exist become empty and keep their numbers; nothing else is changed. Ledgers that exist but cannot be
    read now stay listed. Lost rows are counted no more, so row offsets of what follows get smaller. Raises LogError if others change the
    log meanwhile.

    InvalidArgumentError for the log of a file store, unless ``even_if_files``: what is left of its changes makes other files than there
    were, or none, and the store would show them (GRD-7).
    """
    lost = tuple(problem for problem in check_log(client, name, read=False).problems if problem.kind == "missing")
    if not lost:
        return ()
    check_repairs_files(name, even_if_files)
    missing = {problem.ledger_id for problem in lost}
    listed = read_ledger_list(client, name)
    made: list[int] = []
    custom = {"application": b"bk_core", "purpose": b"stand-in"}
    stand_in = create_intended(client, name, listed.properties, log_id=listed.log_id, password=password, custom=custom)
    stand_in.close()
    load = history_of(client, name, listed.log_id, ChunkCache())
    mended = write_off(listed, missing, stand_in.ledger_id, load, lambda chunk: write_chunk(client, name, listed, chunk, made))

    def change(current: LedgerList) -> LedgerList:
        if current == mended:
            return current  # META-14
        if current != listed:
            raise LogError(f"log {name!r} was changed by others during its repair; nothing was repaired. Repair it again", log=name)
        if not all(ledger_exists(client, ledger_id) for ledger_id in (int(stand_in.ledger_id), *made)):
            # A janitor that is done leaves the list as it was; one that comes after this look changes it, and the write conflicts (LOG-18).
            message = f"a janitor deleted ledgers with which log {name!r} was to be repaired; nothing was repaired. Repair it again"
            raise LogError(message, log=name)
        return mended

    if mended == listed:  # what was missing was trimmed meanwhile
        client.delete_ledger(int(stand_in.ledger_id), even_if_listed=True)
        forget_intent(client, name, int(stand_in.ledger_id))
        return ()
    change_ledger_list(client, name, change)  # if this fails, the janitor finds the new ledgers by their intents
    forget_intent(client, name, int(stand_in.ledger_id))
    for ledger_id in made:
        forget_intent(client, name, ledger_id, HISTORY)
    return lost


def check_repairs_files(name: str, even_if_files: bool) -> None:
    """Raise InvalidArgumentError for the log of a file store that has lost ledgers, unless the caller insists."""
    store = store_of(name)
    if store is None or even_if_files:
        return
    what = (
        f"log {name!r} holds the changes of file store {store!r}, and some are lost: written off, the store would show older files, or none"
    )
    insists = "--even-if-alive where a lost ledger was to tell that its owner is gone"
    query = f"bk checkpoint rm {store} deletes it ({insists}), and a query begins anew or from a copy (bk checkpoint import)"
    raise InvalidArgumentError(
        f"{what}, and a query would go on from there without a word. Nothing was done. {query}; "
        "even_if_files=True (--even-if-files) writes them off all the same",
        log=name,
    )


# --- releasing --------------------------------------------------------------------------------------------------------------


@checked(password=SECRET)
def release_log(
    client: LogClient, name: str, *, password: bytes = b"", even_if_alive: bool = False, ledgers: Iterable[int] | None = None
) -> tuple[int, ...]:
    """Close what an exclusive writer that died has left live, so that others may append (GRD-4); returns the ledgers, () if none is.

    LogWriterAliveError if the writer is seen running on this host, unless ``even_if_alive``, which fences it. A writer of another host
    cannot be seen: ``bk log show`` tells which. A caller who has judged the writers of the live ledgers (``live_writers``) names these
    ``ledgers``: no others are closed. None is closed if the list names others by now; LogWriterAliveError says that another writer has
    come meanwhile, who is left alone.

    WrongPasswordError before anything is fenced (GRD-6). LogDataLossError for a ledger that does not exist (``repair_log`` writes it
    off). ForeignLedgerError for one that does not carry the log's name, which is not fenced (OWN-6).
    """
    listed = read_ledger_list(client, name)
    live = [segment.ledger_id for segment in listed.live_segments]
    judged = None if ledgers is None else sorted(ledgers)
    if judged is not None and sorted(live) != judged:
        message = f"the live ledgers of log {name!r} are {live} by now and not {judged}: another writer came or went meanwhile"
        raise LogWriterAliveError(f"{message}. Nothing was fenced; look again (bk log show {name})", log=name)
    for ledger_id, writer in live_writers(client, live).items() if not even_if_alive else ():
        if writer.state == ALIVE:
            told = f"log {name!r} is being written ({writer.told}; ledger {ledger_id})"
            message = f"{told}; {writer.ending()}, or fence it: even_if_alive=True (--even-if-alive)"
            raise LogWriterAliveError(message, log=name, ledger=ledger_id, insist="even_if_alive")
    if live:
        check_password(client, name, listed, password)
    for ledger_id in live:
        last, size = _ended(client, listed, name, ledger_id, password)
        at_ms = store_now_ms(client)

        def change(current: LedgerList, ended: tuple[int, int, int, int] = (ledger_id, last, size, at_ms)) -> LedgerList:
            return current.close_live(*ended)

        update_ledger_list(client, name, change)
    return tuple(live)


def _ended(client: LogClient, listed: LedgerList, name: str, ledger_id: int, password: bytes) -> tuple[int, int]:
    try:
        with recover_own(client, name, listed.log_id, ledger_id, password, listed.adopted) as ended:
            return int(ended.last_add_confirmed), int(ended.length)
    except NoSuchLedgerError:
        message = f"log {name!r} lists ledger {ledger_id}, which does not exist; bk log repair writes it off"
        raise LogDataLossError(message, log=name, ledger=ledger_id) from None


# --- marks ------------------------------------------------------------------------------------------------------------------


@checked(older_than_ms=COUNT)
def forget_marks(client: LogClient, name: str, query_ids: Iterable[str] = (), *, older_than_ms: int | None = None) -> tuple[str, ...]:
    """Drop marks of queries and transactions by id, or by age in milliseconds; returns the ids, also where an answer was lost.

    A batch that such a query commits again is published again. Marks without a time are dropped by id only. NoSuchLogError.
    """
    wanted = frozenset(query_ids)
    tried: set[str] = set()  # by this call; one whose answer was lost finds them gone

    def change(listed: LedgerList) -> LedgerList:
        before_ms = 0 if older_than_ms is None else store_now_ms(client) - older_than_ms
        old = {query for query, mark in listed.committed.items() if 0 < mark.at_ms < before_ms}
        gone = (wanted | old) & set(listed.committed)
        tried.update(gone)
        return replace(listed, committed={q: m for q, m in listed.committed.items() if q not in gone}) if gone else listed

    left = change_ledger_list(client, name, change).committed
    return tuple(sorted(tried - set(left)))
