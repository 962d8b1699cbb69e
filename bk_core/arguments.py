"""Checks of the arguments of public calls, before anything is done. The error names the argument, what it should be, and what it was.

``checked`` takes the expected types from a function's annotations, ``check_fields`` from a dataclass's. Bounds are given beside them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, SupportsFloat, TypeAlias, TypeVar, get_origin

from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.near import meant

if TYPE_CHECKING:
    from datetime import timedelta
    from types import CodeType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Duration: TypeAlias = "timedelta | float"
"""A length of time as callers give it: a timedelta, or seconds."""
INT64_MAX = 2**63 - 1
MILLISECOND = 0.001
SECONDS_MAX = 1_000_000_000  # 31 years; every call that waits accepts this much, and none accepts infinity
_SHOWN_MAX = 60
_TAKES_ANY_NAME = 0x08  # the flag of a function with **kwargs


@dataclass(frozen=True, slots=True)
class Check:
    """The demands on one argument. ``low`` and ``high`` are inclusive bounds, ``above`` is an exclusive one. A ``secret`` is
    never shown."""

    wanted: str
    fits: Callable[[Any], bool]
    low: float | None = None
    high: float | None = None
    above: float | None = None
    optional: bool = False
    secret: bool = False

    def __call__(self, name: str, value: Any) -> None:
        if value is None and self.optional:
            return
        if not self.fits(value):
            hint = "; encode it: b'...', or .encode() of a text" if self.secret and isinstance(value, str) else ""
            raise ArgumentTypeError(f"{name} must be {self._wanted()}, not {self._shown(value)}{hint}")
        value = value if self.low is self.above is self.high is None or isinstance(value, int | float) else operator.index(value)
        too_low = (self.low is not None and value < self.low) or (self.above is not None and not value > self.above)
        if too_low or (self.high is not None and value > self.high):
            raise InvalidArgumentError(f"{name} must be {self._wanted()}, not {self._shown(value)}")

    def _wanted(self) -> str:
        if self.high is not None and self.low is not None:
            text = f"{self.wanted} within {_bound(self.low)}..{_bound(self.high)}"
        elif self.above is not None or self.low == 1:
            text = f"{self.wanted} above 0" + ("" if self.high is None else f" and at most {_bound(self.high)}")
        elif self.low is not None:
            text = f"{self.wanted} of at least {_bound(self.low)}"
        else:
            text = self.wanted
        return text if not self.optional else f"{text}, or None" if " or " in text else f"{text} or None"

    def _shown(self, value: Any) -> str:
        if self.secret or not isinstance(value, str | bytes | int | float | None):
            return "None" if value is None else f"of type {type(value).__name__}"
        return brief(value)


def brief(value: Any) -> str:
    """Return the ``repr`` of a wrong value for a message, which must not become as long as the value is."""
    try:
        text = repr(value[: _SHOWN_MAX + 1] if isinstance(value, str | bytes) else value)
    except ValueError:  # Python makes no text of a number with thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]} ..."


def _bound(bound: float) -> str:
    return "2^63-1" if bound == INT64_MAX else f"{bound:g}" if isinstance(bound, float) else str(bound)


def _is_whole(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool)
    try:
        operator.index(value)  # such as a number of numpy's
    except TypeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and -SECONDS_MAX <= value <= SECONDS_MAX)


def is_items(value: Any) -> bool:
    """True for an iterable of several things; a text and bytes are one thing each."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview)


def whole(low: int | None = None, high: int | None = None) -> Check:
    return Check("a whole number", _is_whole, low, high)


def one_of(kind: type | tuple[type, ...], wanted: str = "") -> Check:
    name = kind.__name__ if isinstance(kind, type) else ""
    return Check(wanted or f"a {name}", lambda value: isinstance(value, kind))


ID = whole(0, INT64_MAX)  # of a ledger or an entry
COUNT = whole(0)
POSITIVE = whole(1)
PORT = whole(1, 65535)
SECONDS = Check("a finite number of seconds", _is_number, 0, SECONDS_MAX)
POSITIVE_SECONDS = Check("a finite number of seconds", _is_number, high=SECONDS_MAX, above=0)
CLIENT = Check("a client such as bk_core.connect returns", lambda value: hasattr(value, "store"))
DURATION = Check(
    "a timedelta or a number of seconds", lambda value: hasattr(value, "total_seconds") or isinstance(value, float) or _is_whole(value)
)
PROGRESS = Check("True, False or a function", lambda value: isinstance(value, bool) or callable(value))
TEXT = one_of(str, "text")
SECRET = Check("bytes", lambda value: isinstance(value, bytes), secret=True)
_KINDS = {
    "int": whole(),
    "float": Check("a finite number", _is_number),
    "bool": one_of(bool, "True or False"),
    "str": TEXT,
    "BookieId": one_of(str, "text, the id of a bookie"),
    "bytes": one_of(bytes, "bytes"),
    "DigestType | DigestName": Check(
        "a DigestType or its name", lambda value: isinstance(value, str) or type(value).__name__ == "DigestType"
    ),
    "str | os.PathLike[str]": Check("a path", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")),
    "Mapping[str, bytes]": one_of(Mapping, "a mapping of text to bytes"),
    "Mapping[str, str]": one_of(Mapping, "a mapping of text to text"),
    "Sequence[str]": Check(
        "a sequence of texts", lambda value: isinstance(value, Sequence) and is_items(value) and all(isinstance(one, str) for one in value)
    ),
    "Iterable[int]": Check("a collection of numbers", is_items),
    "Iterable[str]": Check("a collection of texts", is_items),
    "frozenset[BookieId]": Check("a collection of ids of bookies", is_items),
    "threading.Event": Check("a threading.Event", lambda value: hasattr(value, "is_set")),
    "LogClient": CLIENT,
    "MetadataStore": Check("a metadata store", lambda value: hasattr(value, "cluster_id")),
    "Duration": DURATION,
    "Callable": Check("a function", callable),
    "AutoRecoveryOptions": Check("AutoRecoveryOptions", lambda value: type(value).__name__ == "AutoRecoveryOptions"),
}


def _check_of(annotation: str, names: Mapping[str, Any], given: Check | None) -> Check | None:
    """Return the check for an annotation, or None for ``Any`` and for types that have no check."""
    base = annotation.removesuffix(" | None")
    if given is None and base == "Any":
        return None
    check = given or _KINDS.get(base) or (_KINDS["Callable"] if base.startswith(("Callable", "OnProgress", "OnStep")) else None)
    if check is None:
        kind = names.get(base)
        if get_origin(kind) is Literal:  # the function knows what it cannot take, and says what it can
            check = TEXT
        else:
            check = one_of(kind) if isinstance(kind, type) else None
    if check is None:
        raise AssertionError(f"no check is known for the annotation {annotation!r}")
    return check if base == annotation else replace(check, optional=True)


def checked(**given: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check every annotated argument of a function before it is called, by ``given`` or else by its annotation.

    The checks raise ArgumentTypeError and InvalidArgumentError, also for the name of an argument that the function does not have. Python
    itself checks the number of arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code, annotations = function.__code__, function.__annotations__
        # *args and **kwargs, which the function checks itself
        variable = set(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
        known = None if code.co_flags & _TAKES_ANY_NAME else _keywords(code)
        checks = {
            name: check
            for name, annotation in annotations.items()
            if name != "return" and name not in variable and (check := _check_of(annotation, function.__globals__, given.get(name)))
        }
        in_order = [(name, checks.get(name)) for name in code.co_varnames[: code.co_argcount]]
        assert given.keys() <= checks.keys(), given.keys() - checks.keys()

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for (name, check), value in zip(in_order, args, strict=False):
                if check is not None:
                    check(name, value)
            for name, value in kwargs.items():
                if name in checks:
                    checks[name](name, value)
                elif known is not None and name not in known:
                    _refuse_name(name, known, f"{function.__name__}() takes no argument")
            return function(*args, **kwargs)

        return call

    return decorate


def _keywords(code: CodeType) -> tuple[str, ...]:
    """Return the names of a function's arguments that may be given by name."""
    return code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]


def _refuse_name(name: str, known: Iterable[str], there_is_none: str) -> NoReturn:
    """Raise ArgumentTypeError, a TypeError as Python's own, with the name that may have been meant."""
    known = [one for one in known if one not in ("self", "cls")]
    hint = meant(name, known, 1) or (f"there are {', '.join(known)}" if known else "there is none")
    raise ArgumentTypeError(f"{there_is_none} {name!r}; {hint}")


def named(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse names of arguments that a function does not have, as ``checked`` does, where another one checks the arguments."""
    known = _keywords(function.__code__)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                _refuse_name(name, known, f"{function.__name__}() takes no argument")
        return function(*args, **kwargs)

    return call


def settings(kind: type[T]) -> type[T]:
    """Decorate a dataclass so that a field that it does not have is refused with the one that may have been meant."""
    made: Any = kind
    known, make = tuple(field.name for field in fields(made) if field.init), made.__init__

    @wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                _refuse_name(name, known, f"{kind.__name__} has no field")
        make(self, *args, **kwargs)

    made.__init__ = __init__
    return kind


@cache
def _field_checks(kind: Any, names: frozenset[tuple[str, Check]], known: frozenset[tuple[str, type]]) -> list[tuple[str, Check]]:
    given, classes = dict(names), dict(known)
    found = ((field.name, _check_of(str(field.type), classes, given.get(field.name))) for field in fields(kind))
    return [(name, check) for name, check in found if check is not None]


def check_fields(value: Any, given: Mapping[str, Check], *classes: type) -> None:
    """Check the fields of a dataclass in the same way. ``classes`` are the classes that its annotations name."""
    names = frozenset(given.items())
    kind: Any = type(value)
    for name, check in _field_checks(kind, names, frozenset((one.__name__, one) for one in classes)):
        check(name, getattr(value, name))


def bytes_like(name: str, payload: Any, **context: Any) -> memoryview:
    """The bytes of any buffer. ArgumentTypeError names the argument and never shows it."""
    try:
        view = memoryview(payload)
        return view.cast("B") if view.nbytes else memoryview(b"")  # cast refuses an empty view of wider items
    except (TypeError, ValueError, BufferError):
        raise ArgumentTypeError(f"{name} must be bytes or another contiguous buffer, not {type(payload).__name__}", **context) from None


def seconds(name: str, value: Duration) -> float:
    """The seconds of a length of time. ArgumentTypeError for what is none, InvalidArgumentError for one below 0 or above 31 years."""
    length = _length(name, value)
    SECONDS(name, length)
    return float(length)


def _length(name: str, value: Duration) -> float:
    DURATION(name, value)
    if not isinstance(value, SupportsFloat):
        return value.total_seconds()
    return int(value) if _is_whole(value) else float(value)  # a whole number may be too large for a float


def milliseconds(name: str, value: Duration) -> int:
    """``seconds`` as whole milliseconds."""
    return int(seconds(name, value) * 1000)


def kept_milliseconds(name: str, value: Duration) -> int:
    """``milliseconds`` of the time for which something is kept, which is at least one."""
    length = _length(name, value)
    if not MILLISECOND <= length <= SECONDS_MAX:
        wanted = "at least a millisecond and at most 31 years, or None to keep everything"
        raise InvalidArgumentError(f"{name} must be {wanted}, not {_told(value)}")
    return int(length * 1000)


def _told(value: Duration) -> str:
    return str(value) if hasattr(value, "total_seconds") else brief(value)


def check_reached(ledger_id: int, first: int, end: int) -> None:
    """Raise InvalidArgumentError for a first entry behind the last one, ``end``: a call that looks at nothing would report that all is
    well. An empty ledger may be looked at from entry 0 on."""
    if first > max(end, 0):
        reach = f"its last entry is {end}, as far as is known" if end >= 0 else "none of its entries is known"
        raise InvalidArgumentError(f"first entry {first} lies beyond the end of ledger {ledger_id}: {reach}", ledger=ledger_id)
