"""Looks at all logs: their lists, the ledgers that these name, their writers, and what dead writers have left."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bk_core.arguments import brief
from bk_core.client.doctor.findings import SHOWN_MAX, Finding
from bk_core.client.doctor.passwords import password_option
from bk_core.client.log.check import check_log
from bk_core.client.log.history import ChunkCache, history_of
from bk_core.client.log.intents import HISTORY, Intent, abandoned, intents_of, lives_here
from bk_core.client.log.janitor import INTENT_AGE_S
from bk_core.client.log.list_store import is_log_name, log_path, read_ledger_list
from bk_core.client.log.live_writers import GONE, live_writers
from bk_core.client.log.orphans import find_orphans
from bk_core.display.words import counted
from bk_core.errors import BkError, MetadataError, NoSuchLogError, WrongClusterError
from bk_core.metadata.paths import VALUE_BYTES_MAX
from bk_core.protocol.log.history import Item
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.list_size import is_large
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.password import witnesses
from bk_core.protocol.log.segments import HistoryRef
from bk_core.protocol.log.vanished import may_be_collected

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper


@dataclass(slots=True)
class Lists:
    """The lists of all logs as they were read. ``sizes`` are the bytes of each in the metadata store; ``bad`` what could not be read."""

    lists: dict[str, LedgerList] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    bad: list[Finding] = field(default_factory=list)

    def ids(self) -> dict[str, str]:
        """Return the ids of the logs by their name."""
        return {name: listed.log_id for name, listed in self.lists.items()}

    @property
    def ensemble_size(self) -> int:
        """The most bookies that a new ledger of one of these logs needs."""
        return max((listed.properties.ensemble_size for listed in self.lists.values()), default=0)


def read_lists(client: BookKeeper, progress: Callable[[int, int], None]) -> Lists:
    """Read the lists of all logs. Raises NoSuchLogRootError."""
    from bk_core.client.log.lists import list_logs

    found = Lists()
    names = list_logs(client)
    strays = [name for name in client.store.children("logs") if not is_log_name(name)]
    if strays:
        first = ", ".join(map(brief, strays[:SHOWN_MAX]))
        what = f"{counted(len(strays), 'node')} beside the lists of logs in {client.store.log_root} cannot be logs by their names: {first}"
        advice = "no program of this project makes or reads such a node: whoever put it there may delete it from the metadata store"
        found.bad.append(Finding("log-stray", what, advice, count=len(strays)))
    for done, (path, stored) in enumerate(client.store.read_many(map(log_path, names)), 1):
        name = path.removeprefix("logs/")
        progress(done, len(names))
        try:
            found.lists[name] = read_ledger_list(client, name)
        except NoSuchLogError:
            continue  # deleted meanwhile
        except WrongClusterError as error:
            advice = "adopt it if it was restored with this cluster (bk log adopt), or forget it where its cluster is gone for good"
            found.bad.append(Finding("log-foreign", str(error.args[0]), advice, f"bk log show {name}", logs=(name,)))
        except MetadataError as error:
            advice = "restore the node from a backup, or read it with the version that wrote it"
            found.bad.append(Finding("log-unreadable", str(error.args[0]), advice, f"bk log check {name}", logs=(name,)))
        found.sizes[name] = 0 if stored is None else len(stored.data)
    return found


def judge_logs(
    client: BookKeeper,
    found: Lists,
    ids: Sequence[int],
    now_ms: int,
    progress: Callable[[int, int], None],
    unread: list[str] | None = None,
) -> Iterator[Finding]:
    """Yield what is wrong with logs. ``ids`` are those of all ledgers, ascending. ``unread`` is given where bookies do not admit this
    client: then it gets the histories that could not be read, which says nothing of them (RR-19)."""
    yield from found.bad
    for done, (name, listed) in enumerate(found.lists.items(), 1):
        progress(done, len(found.lists))
        yield from _judge_log(client, name, listed, ids, unread)
        if is_large(found.sizes.get(name, 0), VALUE_BYTES_MAX):
            what = f"the list of log {name} has {found.sizes[name]:,} bytes of at most {VALUE_BYTES_MAX:,}"
            advice = "drop the marks of queries that are gone, or let them go by age (bk log set NAME --committed-retention 30d)"
            yield Finding("log-list-large", what, advice, f"bk log marks {name}", logs=(name,))
    yield from _left_intents(client, found.lists, now_ms)


def _judge_log(client: BookKeeper, name: str, listed: LedgerList, ids: Sequence[int], unread: list[str] | None) -> Iterator[Finding]:
    try:
        missing = {ledger_id for ledger_id in _named(client, name, listed) if not _has(ids, ledger_id)}
        lost = [one for one in check_log(client, name, read=False).problems if one.kind in ("missing", "history")] if missing else []
        live = [one.ledger_id for one in listed.live_segments if one.ledger_id not in missing]
        writers = live_writers(client, live)
    except NoSuchLogError:
        return
    except BkError as error:
        if unread is not None and not isinstance(error, MetadataError):
            unread.append(f"the history of log {name}")
            return
        option, hint = password_option(client, witnesses(listed))
        what = f"log {name} cannot be read to its beginning: {error.args[0]}"
        advice = f"see which of its ledgers cannot be read{hint}"
        yield Finding("log-unreadable", what, advice, f"bk log check {name}{option}", logs=(name,))
        return
    if lost:
        option, hint = password_option(client, witnesses(listed))
        rows = sum(one.rows for one in lost)
        ledgers = tuple(one.ledger_id for one in lost)
        what = f"log {name} lists {counted(len(lost), 'ledger')} with {counted(rows, 'row')} that cannot be found"
        insists = " --even-if-alive" if any(one.ledger_id in missing for one in listed.live_segments) else ""  # it named the owner
        repair = f"bk log repair {name}" if store_of(name) is None else f"bk checkpoint rm {store_of(name)}{insists}"
        soon = "and soon, because bookies delete what no metadata names (Apache's within 15 minutes)"
        advice = f"restore the metadata of the ledgers if it can be had, {soon}; `{repair}{option}` gives them up for good{hint}"
        command = f"bk log check {name}{option}"
        yield Finding("log-ledgers-missing", what, advice, command, ledgers=ledgers[:SHOWN_MAX], logs=(name,), count=len(lost))
    gone = [ledger_id for ledger_id, writer in writers.items() if writer.state == GONE]
    if gone:
        told = writers[gone[0]].told
        what = f"the writer of log {name} is gone ({told}), and ledger {gone[0]} is still open"
        option, hint = password_option(client, gone)
        advice = f"the next writer takes over by itself; this closes the ledger now, so that queries may write the log{hint}"
        command = f"bk log release {name}{option}"
        yield Finding("writer-gone", what, advice, command, ledgers=tuple(gone), logs=(name,), count=len(gone))


def _named(client: BookKeeper, name: str, listed: LedgerList) -> Iterator[int]:
    """Yield the ledgers that a log names, its history included."""
    load = history_of(client, name, listed.log_id, ChunkCache())
    left: list[Item] = list(listed.items)
    while left:
        item = left.pop()
        if item.after_seq <= listed.trimmed_seq:
            continue
        yield item.ledger_id
        if isinstance(item, HistoryRef):
            left += load(item)


def _has(ids: Sequence[int], ledger_id: int) -> bool:
    at = bisect_left(ids, ledger_id)
    return at < len(ids) and ids[at] == ledger_id


def _left_intents(client: BookKeeper, lists: dict[str, LedgerList], now_ms: int) -> Iterator[Finding]:
    for name in client.store.children("intents"):
        try:
            left = sorted(intent.ledger_id for intent in intents_of(client, name).values() if _is_left(intent, now_ms))
            listed = set(_named(client, name, lists[name])).intersection(left) if left and name in lists else set()
        except (BkError, ValueError):  # a place for something else, or not to be understood: `bk log gc` says so
            continue
        if listed:
            shown = tuple(sorted(listed)[:SHOWN_MAX])
            what = f"log {name} lists {counted(len(listed), 'ledger')} left open by processes that are gone"
            advice = "what was committed to them is read as it is; this closes them"
            yield Finding("ledgers-left", what, advice, _collect(name), ledgers=shown, logs=(name,), count=len(listed))
        left = [one for one in left if one not in listed]
        if left:
            kind = f"log {name}" if name in lists else f"log {name}, which does not exist,"
            what = f"{counted(len(left), 'intent')} of processes that are gone stand beside {kind} for ledgers that were never listed"
            option, hint = password_option(client, left)
            advice = f"the ledgers hold nothing that was committed; this closes and deletes them{hint}"
            command = f"{_collect(name)}{option}"
            yield Finding("intents-left", what, advice, command, ledgers=tuple(left[:SHOWN_MAX]), logs=(name,), count=len(left))


def _collect(name: str) -> str:
    return f"bk log gc {name}" if store_of(name) is None else "bk checkpoint gc"


def _is_left(intent: Intent, now_ms: int) -> bool:
    """Return True if ``bk log gc`` would collect the ledger of the intent now."""
    if lives_here(intent):
        return False
    awaited = intent.purpose != HISTORY and intent.query_id != ""
    age_ms = now_ms - intent.created_ms
    return may_be_collected(age_ms, int(INTENT_AGE_S * 1000), gone=abandoned(intent), awaited=awaited)


def judge_orphans(client: BookKeeper, suspects: Iterable[int], more: bool) -> Iterator[Finding]:
    """Yield a finding about ledgers whose log is gone. ``more`` says that there were more suspects than were kept."""
    found = list(find_orphans(client, progress=lambda _: suspects))
    if found:
        names = tuple(dict.fromkeys(orphan.log for orphan in found))
        least = "at least " if more else ""
        what = f"{least}{counted(len(found), 'ledger')} of logs that are gone: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        known = all(orphan.log_root for orphan in found)
        advice = "look at them first (bk log gc lists each); this deletes those that name their log root"
        if not known:
            advice += ", and with --delete-orphans all also those of earlier versions, whose log may live at another log root"
        ledgers = tuple(orphan.ledger_id for orphan in found[:SHOWN_MAX])
        option, hint = password_option(client, ledgers)
        command = f"bk log gc --delete-orphans known{option}"
        yield Finding("orphans", what, advice + hint, command, ledgers=ledgers, logs=names[:SHOWN_MAX], count=len(found))
