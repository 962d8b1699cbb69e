"""Values as text for people: times, sizes, payloads, and texts of others without the characters that a terminal or a page would obey."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from unicodedata import category

from bk_core.display.moments import told_utc

DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
KEPT = "\n\t"
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats such as bidi marks, halves of characters, ends of lines that look like none
_TOLD_MS = {unit: DURATIONS_MS[unit] for unit in ("d", "h", "m", "s", "ms")}  # from the largest
_PREVIEW_MAX = 80
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def safe(text: str, *, kept: str = KEPT) -> str:
    """Return the text with what a terminal would obey, or hide, spelled out as Python does: \\x1b, \\u202e. ``kept`` stays as it is."""
    bare = text
    for one in kept:
        bare = bare.replace(one, "")
    if bare.isprintable():  # nearly every text; it takes no look at each character
        return text
    return "".join(one if one in kept or category(one) not in UNSAFE else ascii(one)[1:-1] for one in text)


def cell(value: object) -> str:
    """Return the text of a table's cell: numbers with commas, ``yes`` or ``no``, and ``-`` for None. It may hold markup."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else safe(str(value), kept="")


def id_text(number: int | None) -> str | None:
    """Return the number of a ledger, an entry, a segment or a batch without commas, as commands take it; None for none."""
    return None if number is None else str(number)


def counted(count: int, one: str, many: str = "") -> str:
    """Return ``1 file`` or ``2,000 files``. ``many`` is the plural of a word that takes no mere s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def about(what: str, text: object) -> str:
    """Return ``ledger 7: text``, or the text alone if it names ``what`` by itself, as the messages of most errors do."""
    return f"{text}" if re.search(rf"(?<!\w){re.escape(what)}(?!\w)", f"{text}") else f"{what}: {text}"


def rest_about(what: str, text: object) -> str:
    """Return the text of an error for the end of a sentence that names ``what``: without ``ledger 7:`` at its beginning."""
    return re.sub(rf"^(\[[A-Z-]+\] )?{re.escape(what)}: ", r"\1", f"{text}")


def host_port(host: str, port: int) -> str:
    """Return host and port as one text, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(4096)
def places(address: tuple[str, int]) -> frozenset[tuple[str, int]]:
    """Return the addresses that a host and a port stand for, each in one spelling: ``localhost`` is loopback of IPv4 and of IPv6, and a
    name that is looked up elsewhere stands for itself."""
    host, port = address[0].lower().rstrip("."), address[1]
    if host == "localhost":
        return frozenset({("127.0.0.1", port), ("::1", port)})
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        return frozenset({(host, port)})
    mapped = literal.ipv4_mapped if literal.version == 6 else None
    return frozenset({(str(mapped or literal), port)})


def meet(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return True if two addresses lead to one place, in whichever spelling."""
    return one == other or not places(one).isdisjoint(places(other))


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return the host and the port of a bookie's id that is its address, None for another one. A host of IPv6 stands in it as Apache's
    bookies write it, ``::1:3181``, or in brackets."""
    match = re.fullmatch(r"(.+):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        return None
    host, port = match[1], int(match[2])
    if ":" not in host:
        return host, port
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return (host, port) if is_ipv6(host) else None


def is_ipv6(host: str) -> bool:
    """Return True for an address of IPv6, without brackets."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def when(milliseconds: int | None) -> str | None:
    """Return milliseconds since 1970 as UTC to the second, None for none."""
    return None if not milliseconds else told_utc(milliseconds)


def preview(payload: bytes) -> str:
    """Return bytes as text if they are printable text, else as hexadecimal; cut to one line."""
    head = payload[: _PREVIEW_MAX * 4]
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text and text.isprintable() else "0x" + head.hex() if head else ""
    return shown if len(shown) <= _PREVIEW_MAX and len(head) == len(payload) else shown[:_PREVIEW_MAX] + " ..."


def told_duration(ms: int) -> str:
    """Return milliseconds as the options of ``bk`` take them, in the largest unit that leaves no rest: 7d."""
    unit = next(unit for unit, size in _TOLD_MS.items() if ms % size == 0)
    return f"{ms // _TOLD_MS[unit]}{unit}"


def told_age(ms: int) -> str:
    """Return milliseconds rounded down to the largest unit that there is one of: 45s, 3h, 12d. A time to come has a minus before it."""
    count, unit = next(((abs(ms) // _TOLD_MS[unit], unit) for unit in ("d", "h", "m") if abs(ms) >= _TOLD_MS[unit]), (abs(ms) // 1000, "s"))
    return f"{'-' if ms < 0 and count else ''}{count:,}{unit}"


def told_size(size: int) -> str:
    """Return bytes as the options of ``bk`` take them, in the largest power of 1024 that leaves no rest: 10GiB. A plain number has
    commas."""
    power = max((power for power in POWERS.values() if size % 1024**power == 0), default=0) if size else 0
    return f"{size // 1024**power}{list(POWERS)[power]}iB" if power else f"{size:,}"


def disk_size(count: int) -> str:
    """Return the bytes of a disk with three digits, in the largest of kB, MB, GB, TB and PB that there is one of: 1.50 TB."""
    amount, unit = float(count), "B"
    for unit in _UNITS:
        if amount < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:,.{digits}f} {unit}"


def told_time(ns: int | None) -> str | None:
    """Return a short time of nanoseconds with three digits, in us, ms or s; None for none."""
    if ns is None:
        return None
    amount, unit = (ns / 1e3, "us") if ns < 999_500 else (ns / 1e6, "ms") if ns < 999_500_000 else (ns / 1e9, "s")
    return f"{amount:.0f} {unit}" if amount >= 99.95 else f"{amount:.1f} {unit}" if amount >= 9.995 else f"{amount:.2f} {unit}"


def rounded_size(count: int) -> str:
    """Return bytes in the unit that leaves at most three digits before the point, with one after it: 1.5 MB. Less than 1,000 are bytes."""
    amount, unit = float(count), "B"
    for unit in _UNITS:
        if amount < 999.95 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{count:,} B" if unit == "B" else f"{amount:,.1f} {unit}"
