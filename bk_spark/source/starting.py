"""Finds the logs that a source reads, and the positions at which it begins and ends in each: ``startingOffsets``, ``startingTimestamp`` and
similar options.

As with Kafka a timestamp for all logs goes before timestamps by log, and those before offsets. Times are those of commits: the resolution
is a segment, which for the Spark sink is what one task wrote in one batch (a live segment counts as committed now).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bk_core.client.log.lists import list_logs
from bk_core.errors import InvalidArgumentError, LogDataLossError, NoSuchLogError
from bk_core.protocol.log.names import not_of_files
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView
from bk_spark.options.grammar import EARLIEST, LATEST, Offsets, Place, matching
from bk_spark.options.table import Options

_SHOWN = 10  # names of logs in a message


def source_logs(options: Options, client: Any, under_way: bool = False) -> tuple[str, ...]:
    """Return the names of the logs to read, sorted: ``log``, ``logs``, or those that ``logPattern`` matches now. Raises NoSuchLogError if
    it matches none.

    ``under_way``: for a stream that may have begun long ago, so that offsets by log need not name what a pattern matches now.
    """
    if options.log_pattern is None:
        names = options.log_names()
    else:
        there = list_logs(client)
        names = matching(options.log_pattern, there)
        if not names and not options.wait_for_log:
            raise NoSuchLogError(
                f"logPattern {options.log_pattern!r} matches no log; {_some(not_of_files(there, ''))}", pattern=options.log_pattern
            )
    if not (under_way and options.log_pattern is not None):
        check_offsets_name(options, names)
    return names


def check_beginning(options: Options, names: Collection[str]) -> None:
    """Check the start of a new query with a pattern: InvalidArgumentError for offsets and times of logs that it does not match, and for one
    place in several. Logs that are not named begin at their first entry, as those do that come later (Kafka's rule for new partitions).
    """
    offsets, times = options.starting_offsets, options.starting_offsets_by_timestamp
    if offsets is not None and offsets.everywhere is not None and offsets.everywhere.word is None and len(names) != 1:
        raise InvalidArgumentError(f'startingOffsets is a place in one log; for several write {{"log": {{...}}, ...}} with {_list(names)}')
    for option, given in (
        ("startingOffsets", [name for name, _ in offsets.by_log] if offsets is not None else []),
        ("startingOffsetsByTimestamp", [name for name, _ in times or ()]),
    ):
        if strange := set(given) - set(names):
            raise InvalidArgumentError(f"{option} names {_list(strange)}; the pattern matches {_list(names)}")


def unnamed_place(options: Options) -> str:
    """Return ``earliest`` or ``latest``: the place where a stream begins in a log for which no option gives one."""
    offsets, times = options.starting_offsets, options.starting_offsets_by_timestamp
    by_log = offsets.everywhere is None if offsets is not None else times is not None
    return EARLIEST if options.log_pattern is not None and by_log else LATEST


def check_offsets_name(options: Options, names: Collection[str]) -> None:
    """Raise InvalidArgumentError unless offsets and times given by log name each of the logs, and no other."""
    for option, given in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if given is None:
            continue
        if given.everywhere is not None:
            if given.everywhere.word is None and len(names) != 1:
                raise InvalidArgumentError(f'{option} is a place in one log; for several write {{"log": {{...}}, ...}} with {_list(names)}')
            continue
        _check_same(option, [name for name, _ in given.by_log], names)
    for option, times in (
        ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
    ):
        if times is not None:
            _check_same(option, [name for name, _ in times], names)


def _check_same(option: str, given: Collection[str], names: Collection[str]) -> None:
    missing, strange = set(names) - set(given), set(given) - set(names)
    if missing or strange:
        named = f"names {_list(strange)}, which {'is' if len(strange) == 1 else 'are'} not read" if strange else ""
        lacks = f"leaves out {_list(missing)}" if missing else ""
        reads = f"; the source reads {_list(names)}" if not (strange and missing) else ""
        raise InvalidArgumentError(f"{option} {' and '.join(filter(None, (f'{named},' if named and lacks else named, lacks)))}{reads}")


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"there are {', '.join(shown)}{more}" if names else "there is none at all"


def _list(names: Collection[str]) -> str:
    shown = [repr(name) for name in sorted(names)[:_SHOWN]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more if names else "no log"


def starting_position(view: LogView, log: str, options: Options, default: str, end: Position | None = None) -> Position:
    """Return the position at which reading of ``log`` begins. ``default`` is ``earliest`` or ``latest``. ``end`` is what latest means, by
    default behind the last committed entry.

    Raises LogDataLossError for a place that was trimmed or belongs to a log of that name that was deleted (``failOnDataLoss=false``: the
    first entry); InvalidArgumentError for a place beyond the end, or a time after the last commit (unless the strategy is ``latest``).
    """
    end = view.end_position if end is None else end
    when = _time(options.starting_timestamp, options.starting_offsets_by_timestamp, log)
    if when is not None:
        position = view.position_at_time(when)
        if position is None and options.starting_offsets_by_timestamp_strategy == "error":
            option = "startingOffsetsByTimestamp" if options.starting_timestamp is None else "startingTimestamp"
            raise InvalidArgumentError(
                f"log {log!r} has no commit at or after {getattr(when, 'text', when)} ({option}); with "
                "startingOffsetsByTimestampStrategy=latest reading begins at its end"
            )
        return end if position is None else min(position, end)
    return _position(view, log, _place(options.starting_offsets, log, default), "startingOffsets", options, end)


def ending_position(view: LogView, log: str, options: Options, end: Position | None = None) -> Position:
    """Return the end of a batch read of ``log``: the first position that is not read. A time after the last commit is the end
    of the log."""
    end = view.end_position if end is None else end
    when = _time(options.ending_timestamp, options.ending_offsets_by_timestamp, log)
    if when is not None:
        position = view.position_at_time(when)
        return end if position is None else min(position, end)
    return _position(view, log, _place(options.ending_offsets, log, LATEST), "endingOffsets", options, end)


def depends_on_now(options: Options, log: str, default: str) -> bool:
    """Return True if the starting position changes when it is asked for later."""
    if _time(options.starting_timestamp, options.starting_offsets_by_timestamp, log) is not None:
        return options.starting_offsets_by_timestamp_strategy == "latest"
    return _place(options.starting_offsets, log, default).word == LATEST


def _time(everywhere: int | None, by_log: tuple[tuple[str, int], ...] | None, log: str) -> int | None:
    return everywhere if everywhere is not None else dict(by_log or ()).get(log)


def _place(offsets: Offsets | None, log: str, default: str) -> Place:
    return (offsets.place(log) if offsets is not None else None) or Place(word=default)


def _position(view: LogView, log: str, place: Place, option: str, options: Options, end: Position) -> Position:
    if place.word is not None:
        return min(view.first_position, end) if place.word == EARLIEST else end
    try:
        position = _exact(view, log, place)
    except LogDataLossError:
        if options.fail_on_data_loss:
            raise
        position = view.first_position
    if position > max(end, view.normal(end)):
        raise InvalidArgumentError(f"{option} lies beyond the end of log {log!r} (segment {end.seq}, entry {end.entry})")
    return min(position, end)


def _exact(view: LogView, log: str, place: Place) -> Position:
    if place.ledger_id is not None:
        return view.position_of_entry(place.ledger_id, place.entry)
    if place.log_id is not None and place.log_id != view.log_id:
        raise LogDataLossError(f"log {log!r} was deleted and created again since that offset was taken", log=log)
    assert place.seq is not None
    return view.normal(Position(place.seq, place.entry, place.row))
