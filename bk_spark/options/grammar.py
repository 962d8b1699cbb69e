"""The grammar of option values: text to plain, picklable values. Pure; a ValueError says what was expected.

Offsets of a source (spark-connectors.md 2.4), for one log or for each of several:

    earliest | latest
    {"seq": 3, "entry": 5, "row": 0}        the next entry to read is entry 5 of segment 3; rows before ``row`` are left out
    {"ledgerId": 7, "entryId": 0}           the same by ledger
    {"flights": {"seq": 3}, "ships": -2}    per log; -2 is earliest, -1 is latest, as with Kafka

What progress and checkpoints show is accepted as it is: ``logId`` is compared, ``rows`` and ``bytes`` are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bk_core.protocol.log.names import not_of_files
from bk_core.protocol.log.offset import KEYS
from bk_core.protocol.log.stored_json import loads

EARLIEST, LATEST = "earliest", "latest"
KAFKA = "kafka"
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_TIMES_MS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_POSITION_KEYS = {"log", *KEYS}
_LEDGER_KEYS = {"ledgerId", "entryId"}
_SENTINELS = {-2: EARLIEST, -1: LATEST}
OFFSETS_SHAPE = 'earliest, latest or JSON like {"seq":3,"entry":0}, {"ledgerId":7,"entryId":0} or {"flights":{"seq":3},"ships":-2}'


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one log: ``word``, or ``seq`` with entry and row, or ``ledger_id`` with entry. ``log_id`` is the id of its
    log, if known."""

    word: str | None = None
    seq: int | None = None
    entry: int = 0
    row: int = 0
    ledger_id: int | None = None
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """``everywhere`` for all logs, or places by log name, sorted. A place that is no word fits a single log only."""

    everywhere: Place | None = None
    by_log: tuple[tuple[str, Place], ...] = ()

    def place(self, log: str) -> Place | None:
        return self.everywhere or dict(self.by_log).get(log)


def parse_size(text: str) -> int:
    """Parse bytes: ``134217728``, ``128m``, ``1g``."""
    digits = text.strip().lower().rstrip("bkmg")
    unit = text.strip().lower()[len(digits) :]
    if not _is_number(digits) or unit not in _SIZES or int(digits) == 0:
        raise ValueError("expected a size like 262144, 256k or 128m")
    return int(digits) * _SIZES[unit]


ENTRY_BYTES_MAX = (5 << 20) - 1024
"""Payload of one entry: the longest frame that both sides take (``wire.frames``; Apache's ``nettyMaxFrameSizeBytes``), less room for
headers and the longest digest."""


def parse_entry_size(text: str) -> int:
    """Parse the bytes of an entry that bookies take."""
    size = parse_size(text)
    if size > ENTRY_BYTES_MAX:
        raise ValueError(f"expected at most {ENTRY_BYTES_MAX} bytes, like 256k or 4m: bookies take no larger entry")
    return size


def parse_duration(text: str) -> int:
    """Parse milliseconds: ``15m``, ``30s``, ``500ms``, ``2h``, ``7d``; a bare number is milliseconds, as with Spark."""
    match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _TIMES_MS:
        raise ValueError("expected a time like 500ms, 30s, 15m, 2h or 7d")
    return int(match[1]) * _TIMES_MS[match[2]]


AGE_MAX_MS = 3 * 3_600_000
"""A data ledger must be closed well before a janitor takes it for abandoned."""


def parse_age(text: str) -> int:
    """Parse milliseconds: a duration above zero and of at most three hours."""
    age = parse_duration(text)
    if not 0 < age <= AGE_MAX_MS:
        raise ValueError("expected a time of at most 3h, like 10m")
    return age


def parse_count(text: str) -> int:
    if not _is_number(text.strip()) or int(text) == 0:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


def parse_version(text: str) -> int:
    if not _is_number(text.strip()):
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def parse_bool(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.strip().lower() == "true"


def parse_metadata(text: str) -> bool | str:
    """Parse True, False or KAFKA."""
    if text.strip().lower() == KAFKA:
        return KAFKA
    try:
        return parse_bool(text)
    except ValueError:
        raise ValueError("expected true, false or kafka") from None


def parse_ledgers(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``7,9-12`` to ((7, 7), (9, 12)): inclusive ranges of ledger ids."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip(), re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("expected ledger ids like 7,9-12")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return tuple(ranges)


def parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError("expected some text")
    return text.strip()


_OF_PATTERNS = re.compile(r"[*?+|^$,()\[\]{}\\]")


def parse_log(text: str) -> str:
    """Parse one name. Signs of a pattern or a list are refused here; the log itself checks the rest."""
    name = parse_text(text)
    if _OF_PATTERNS.search(name):
        raise ValueError("expected the name of one log; for several logs: logPattern with a regular expression, or logs like flights,ships")
    return name


def parse_names(text: str) -> tuple[str, ...]:
    """Parse ``flights, ships``: names separated by commas, sorted, each once."""
    names = [name.strip() for name in text.split(",")]
    if any(_OF_PATTERNS.search(name) for name in names):
        raise ValueError("expected names like flights,ships; for all logs whose name matches a regular expression: logPattern")
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("expected different names like flights,ships")
    return tuple(sorted(names))


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse ``id,_offset``: names of columns in the order they are wanted, each once."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("expected different names of columns like id,_offset")
    return names


def parse_pattern(text: str) -> str:
    """Parse a regular expression that must match a whole name."""
    try:
        re.compile(parse_text(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return text.strip()


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the whole of ``pattern`` matches, sorted. Names of file stores' logs are left out, unless the pattern begins
    with their prefix, as ``files\\.flights`` does."""
    wanted = re.compile(pattern)
    return tuple(sorted(name for name in not_of_files(names, pattern.replace("\\", "")) if wanted.fullmatch(name)))


def parse_secret(text: str) -> bytes:
    return text.encode()


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError(f"expected one of {', '.join(words)}")

    return parse


# --- offsets and times ------------------------------------------------------------------------------------------------


def parse_offsets(text: str) -> Offsets:
    plain = text.strip()
    if plain.lower() in (EARLIEST, LATEST):
        return Offsets(Place(word=plain.lower()))
    value = _json_object(plain, OFFSETS_SHAPE)
    if any(isinstance(place, dict) and _is_by_partition(place) for place in value.values()):
        raise ValueError(
            'a log has no partitions: Kafka\'s {"0": 5} has no counterpart here, name a segment ({"flights":{"seq":3}}) or a time '
            f"(startingTimestamp, endingTimestamp); expected {OFFSETS_SHAPE}"
        )
    if value and all(_is_place(place) for place in value.values()):
        return Offsets(by_log=tuple(sorted((name, _place(place)) for name, place in value.items())))
    return Offsets(_place(value))


def _is_by_partition(place: Mapping[str, Any]) -> bool:
    """Return True for what Kafka's source takes for a topic: a number for each partition."""
    return bool(place) and all(_is_number(key) for key in place)


def _is_place(value: Any) -> bool:
    """Return True if the value of a key is a place of its own; then the key is the log's name."""
    return isinstance(value, dict) or value in (EARLIEST, LATEST) or (_is_int(value) and value < 0)


def _place(value: Any) -> Place:
    if isinstance(value, str) and value in (EARLIEST, LATEST):
        return Place(word=value)
    if _is_int(value) and value in _SENTINELS:
        return Place(word=_SENTINELS[value])
    if isinstance(value, dict) and _is_int(value.get("seq")) and not value.keys() - _POSITION_KEYS:
        return Place(
            seq=_natural(value, "seq"), entry=_natural(value, "entry"), row=_natural(value, "row"), log_id=_log_id(value.get("logId"))
        )
    if isinstance(value, dict) and value.keys() == _LEDGER_KEYS:
        return Place(ledger_id=_natural(value, "ledgerId"), entry=_natural(value, "entryId"))
    raise ValueError(f"expected {OFFSETS_SHAPE}")


def _log_id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"expected {OFFSETS_SHAPE}")
    return value


def _natural(value: Mapping[str, Any], key: str) -> int:
    number = value.get(key, 0)
    if not _is_int(number) or not 0 <= number < 1 << 63:
        raise ValueError(f"expected a whole number of at least 0 for {key}")
    return int(number)


class Moment(int):
    """Milliseconds since 1970, and the ``text`` in which they were given, for messages."""

    text: str

    def __new__(cls, text: str, ms: int) -> Moment:
        made = super().__new__(cls, ms)
        made.text = text
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Moment, (self.text, int(self))


def parse_when(text: str) -> Moment:
    """Parse milliseconds since 1970: digits as they are, or ISO 8601 (``2026-11-20T12:00:00Z``); without a zone it is UTC."""
    plain = text.strip()
    if _is_number(plain):
        return Moment(plain, int(plain))
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise ValueError("expected milliseconds since 1970 or ISO 8601 like 2026-11-20T12:00:00Z") from None
    return Moment(plain, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def parse_times(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``{"flights": 1763640000000, "ships": "2026-11-20T12:00:00Z"}``: a time for each log, sorted by name."""
    shape = 'JSON like {"flights":1763640000000,"ships":"2026-11-20T12:00:00Z"}'
    value = _json_object(text, shape)
    if any(isinstance(when, dict) and _is_by_partition(when) for when in value.values()):
        raise ValueError(f"a log has no partitions, as Kafka's topics have: name one time for each log; expected {shape}")
    if not value or not all(isinstance(when, str) or (_is_int(when) and when >= 0) for when in value.values()):
        raise ValueError(f"expected {shape}")
    return tuple(sorted((name, parse_when(str(when))) for name, when in value.items()))


def _json_object(text: str, shape: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected {shape}")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
