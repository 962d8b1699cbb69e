"""The watcher: one thread looks at the metadata store again and again, so that pages know a cluster without asking it.

What it costs the store is bounded, whatever the number of ledgers, logs and browsers (README, decision 4): a look every ``LOOK_S``; all ids
of ledgers so seldom that listing them takes a twentieth of the time; metadata of at most ``READS`` ledgers and ``LOGS`` logs a look, one
request at a time; watches on ``WATCHED_MAX`` ledgers that are open.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from bk_core.background import BackgroundLoop
from bk_core.display.words import counted
from bk_core.errors import BkError, ClientClosedError, MetadataFormatError, MetadataUnavailableError, NoNodeError, NoSuchLogRootError
from bk_core.metadata.store import BookieView, Watch
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.ui.events import ClusterEvent, EventLog, of_bookies, of_ids, of_metadata
from bk_core.ui.index import LedgerIndex

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.log.view import LogView

log = logging.getLogger("bk_core.ui")

T = TypeVar("T")

LOOK_S = 2.0
HURRY_S = 0.5  # between two looks while there are ledgers whose metadata was not read yet
LISTING_SHARE = 20  # listing all ledgers takes at most this part of the time
READS = 500
LOGS = 25
OPEN_MAX = 2000
WATCHED_MAX = 200
LATE_S = 4.0  # a look that got no answer for so long: the cluster does not answer
DOWN_S = 1.0  # until the next look at a cluster that did not answer


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster as the last looks have seen it. ``at_ms`` is when the last one ended, on this machine's clock."""

    at_ms: int
    cluster: str
    bookies: BookieView
    cookies: tuple[str, ...]
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """The cluster answers, or does not: since when (``since_ms``, the time of the last answer; None if there was none), and why,
    as far as that is known."""

    answers: bool
    since_ms: int | None = None
    problem: str | None = None


class Watcher:
    """Looks at the cluster of ``client`` until it is closed. Other threads read ``sight``, ``events``, ``index`` and ``health``."""

    def __init__(self, client: BookKeeper, *, look_s: float = LOOK_S) -> None:
        self.client = client
        self.events = EventLog()
        self.index = LedgerIndex()
        self.sight: Sight | None = None
        self._look_s = look_s
        self._open: OrderedDict[int, LedgerMetadata] = OrderedDict()  # ledgers that are not CLOSED; the next one to look at first
        self._watches: dict[int, Watch] = {}
        self._changed: set[int] = set()  # ledgers whose watch has told of a change
        self._logs: dict[str, tuple[int, int, int]] = {}  # version, segments and rows of each log
        self._logs_at = 0
        self._listed_s: float | None = None  # when all ids were listed last
        self._listing_s = 0.0  # how long that took
        self._beat: tuple[float, int] | None = None  # the last answer: monotonic seconds, and milliseconds since 1970
        self._looking_since: float | None = None
        self._problem: str | None = None
        self._new: frozenset[int] = frozenset()  # ledgers that the look under way has found first
        self._silence: str | None = None  # a problem that a page has shown, or a look has met
        self._is_lost = False  # and the events say so
        self._loop = BackgroundLoop("bk-ui-watch", self._turn)

    def start(self) -> None:
        """Begin to look."""
        self._loop.start()

    def close(self) -> None:
        """Stop. A look that is under way is not waited for."""
        self._loop.stop()

    @property
    def has_listed(self) -> bool:
        """True once the ids of all ledgers were listed, which takes seconds where there are very many."""
        return self._listed_s is not None

    @property
    def health(self) -> Health:
        """The health at this moment."""
        beat, since = self._beat, self._looking_since
        at_ms = None if beat is None else beat[1]
        problem = self._problem
        if problem is None and not self.client.store.is_connected():
            problem = "there is no connection to the metadata store"
        last_s = max(since or 0.0, beat[0] if beat else 0.0)
        if problem is None and since is not None and time.monotonic() - last_s > LATE_S:
            problem = "the metadata store does not answer"
        if problem is None:
            return Health(True)
        self._silence = problem  # the events tell of it, too
        return Health(False, at_ms, problem)

    # --- a look ------------------------------------------------------------------------------------------------------

    def _turn(self) -> float | None:
        self._looking_since = time.monotonic()
        try:
            hurry = self._look()
        except ClientClosedError:
            return None
        except (BkError, OSError) as error:
            self._problem = self._silence = str(error)
            self._tell_silence()
            return DOWN_S
        finally:
            self._looking_since = None
        self._problem = None
        self._tell_silence()  # it may have been shorter than a look
        if self._is_lost:
            self._is_lost, self._silence = False, None
            self._tell([ClusterEvent("cluster", "the cluster answers again", "good")])
        return min(HURRY_S, self._look_s) if hurry else self._look_s

    def _tell_silence(self) -> None:
        if self._silence is not None and not self._is_lost:
            self._is_lost = True
            self._tell([ClusterEvent("cluster", f"the cluster does not answer: {self._silence}", "bad")])

    def _look(self) -> bool:
        """Take one look, and return True if there is more to read soon."""
        client, store = self.client, self.client.store
        if self._problem is not None and not store.is_connected():
            raise MetadataUnavailableError(self._problem.partition("] ")[2] or self._problem)  # the client connects again by itself
        cluster = self._heard(store.cluster_id())
        bookies, cookies = self._heard(client.bookies()), self._heard(tuple(store.cookies()))
        names = self._heard(self._log_names())
        before = self.sight
        self.sight = Sight(_now_ms(), cluster, bookies, cookies, names)
        if before is not None:
            self._tell(of_bookies(before.bookies, bookies))
            known, there = set(before.logs), set(names)
            self._tell(ClusterEvent("log", f"log {name} was created", "good", log=name) for name in names if name not in known)
            self._tell(ClusterEvent("log", f"log {name} was deleted", "watch", log=name) for name in before.logs if name not in there)
        self._look_at_ids()
        self._look_at_logs(names)
        budget = READS - self._read_ledgers(self._due(), READS)
        self._read_ledgers(self.index.unread(budget), budget)
        return bool(self._changed or self.index.unread(1))

    def _heard(self, answer: T) -> T:
        """Note that the cluster has answered just now."""
        self._beat = time.monotonic(), _now_ms()
        return answer

    def _log_names(self) -> tuple[str, ...]:
        try:
            return tuple(self.client.logs())
        except NoSuchLogRootError:  # it was named by hand, and nobody has made a log there yet
            return ()

    def _tell(self, events: Iterable[ClusterEvent]) -> None:
        self.events.add(events, _now_ms())

    def _look_at_ids(self) -> None:
        now = time.monotonic()
        if self._listed_s is not None and now - self._listed_s < self._listing_s * LISTING_SHARE:
            return
        ids = array("q")
        for count, ledger_id in enumerate(self.client.list_ledgers()):
            ids.append(ledger_id)
            if count % 1000 == 0:
                self._heard(None)
        is_first, self._listed_s = self._listed_s is None, time.monotonic()
        self._listing_s = self._listed_s - now
        created, deleted = self.index.replace(ids)
        for ledger_id in deleted:
            self._drop(ledger_id)
        if not is_first:
            self._tell(of_ids(created, deleted))
            self._new = frozenset(created)
            self._read_ledgers(created, READS)
            self._new = frozenset()

    # --- ledgers -----------------------------------------------------------------------------------------------------

    def _due(self) -> list[int]:
        """Return the open ledgers to look at: those whose watch has fired, then those that have no watch, in turn."""
        fired = list(self._changed)
        unwatched = (one for one in self._open if one not in self._watches and one not in fired)
        return fired + list(islice(unwatched, READS // 2))

    def _read_ledgers(self, ids: Iterable[int], most: int) -> int:
        """Read the metadata of some ledgers, and tell what has happened to them; return how many."""
        count = 0
        for ledger_id in islice(ids, most):
            is_marked = ledger_id in self._changed
            self._changed.discard(ledger_id)  # before the read, so that a change during it counts
            count += 1
            try:
                metadata = metadata_codec.decode(self._heard(self.client.store.read_ledger(ledger_id)).data)
            except NoNodeError:  # the next list of ids tells of it
                self._heard(None)
                self._drop(ledger_id)
                continue
            except MetadataFormatError:
                self.index.learn(ledger_id, None)
                continue
            except BaseException:
                if is_marked:  # nothing else leads to another look at a ledger that is watched
                    self._changed.add(ledger_id)
                raise
            before = self._open.get(ledger_id)
            if before is not None or ledger_id in self._new:
                self._tell(of_metadata(ledger_id, before, metadata))
            self._keep(ledger_id, metadata)
        return count

    def _keep(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.index.learn(ledger_id, metadata)
        if metadata.state is LedgerState.CLOSED:
            self._open.pop(ledger_id, None)
            self._unwatch(ledger_id)
            return
        if ledger_id in self._open or len(self._open) < OPEN_MAX:
            self._open[ledger_id] = metadata
            self._open.move_to_end(ledger_id)
            if ledger_id not in self._watches and len(self._watches) < WATCHED_MAX:
                self._watch(ledger_id)

    def _watch(self, ledger_id: int) -> None:
        self._watches[ledger_id] = self.client.store.watch_ledger(ledger_id, partial(self._has_changed, ledger_id))
        self._changed.add(ledger_id)  # it may have changed before the watch was there

    def _has_changed(self, ledger_id: int) -> None:
        self._changed.add(ledger_id)
        self._loop.wake()

    def _unwatch(self, ledger_id: int) -> None:
        watch = self._watches.pop(ledger_id, None)
        if watch is not None:
            watch.cancel()

    def _drop(self, ledger_id: int) -> None:
        self._changed.discard(ledger_id)
        self._open.pop(ledger_id, None)
        self._unwatch(ledger_id)
        self.index.forget(ledger_id)

    # --- logs --------------------------------------------------------------------------------------------------------

    def _look_at_logs(self, names: tuple[str, ...]) -> None:
        from bk_core.client.log.history import read_log

        for gone in self._logs.keys() - set(names):
            del self._logs[gone]
        for name in self._turn_of(names):
            try:
                view = self._heard(read_log(self.client, name))
            except (MetadataUnavailableError, ClientClosedError):
                raise
            except BkError:  # gone meanwhile, or another cluster's: its own page tells
                continue
            self._see_log(name, view)

    def _turn_of(self, names: tuple[str, ...]) -> Iterator[str]:
        count = min(LOGS, len(names))
        start, self._logs_at = self._logs_at, (self._logs_at + count) % max(1, len(names))
        return (names[(start + at) % len(names)] for at in range(count))

    def _see_log(self, name: str, view: LogView) -> None:
        version, segments, rows = view.version, view.next_seq, view.listed.total_rows
        before = self._logs.get(name)
        self._logs[name] = (version, segments, rows)
        if before is None or before[0] == version:
            return
        more, more_rows = segments - before[1], rows - before[2]
        if more_rows < 0:  # trimmed rows count on
            said = f"log {name}: {counted(-more_rows, 'row')} written off, whose ledgers do not exist any more"
            self._tell([ClusterEvent("log", said, "bad", log=name)])
        elif more > 0 or more_rows > 0:
            grown = [counted(count, what) for count, what in ((more, "segment"), (more_rows, "row")) if count > 0]
            self._tell([ClusterEvent("log", f"log {name}: {' and '.join(grown)} more", log=name)])
        else:
            self._tell([ClusterEvent("log", f"log {name}: its list was changed: trimmed, sealed, or other properties", log=name)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
