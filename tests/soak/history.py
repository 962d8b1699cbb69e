"""The history of a run: one record per operation, with the time it was asked for and the time it was answered, in memory and in a file.

A file holds JSON objects, one a line. An operation has two lines: ``begin`` is written before the operation starts, ``end`` before anybody
acts on its result. An operation without ``end`` may have taken effect or not: its outcome is ``unknown``. Times are nanoseconds of the
machine's monotonic clock, which all its processes share. Several files (one per process) make one history.

Kinds and what they carry (``args`` / ``value`` when ok):

    create        e w a guaranteed                   / ledger
    append        first count digests                / last
    close                                            / last length state
    give_up       lac                                /                     the writer leaves the ledger as it is
    recover       by                                 / last length state
    open                                             / last length state
    lac           handle                             / lac
    wait_for      handle entry                       / reached lac closed
    read          handle first last                  / digests             bounded by a LAC or a last entry
    tail          handle                             / first last digests  one run of an unending read; -1 at its end
    final         (after all faults are healed)      / last length state fragments ensemble_size
    final_read    first last                         / digests bytes
    copies        w a                                / sealed missing unknown    [[entry, copies that are missing] ...]; replicas not seen
    log_open      log leader                         / ledger
    log_append    log leader digest                  / ledger entry
    log_read      log reader                         / runs                [[seq, ledger, first entry, digests] ...]
    log_list      log                                / ledgers unclosed    unclosed: listed before the last two and not CLOSED
    log_final     log                                / runs ends           a whole new read; ends: last entry by ledger
    killed                                                                 the actor is gone: what it had begun stays unknown
    fault         fault and what it hit              /                     not checked; for the reader of the file
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIGEST_BYTES = 8


def digest(payload: bytes) -> bytes:
    """Return what stands for a payload in a history; Duel.java makes the same."""
    return hashlib.sha256(payload).digest()[:DIGEST_BYTES]


def digests(payloads: Iterable[bytes]) -> bytes:
    return b"".join(map(digest, payloads))


def split(joined: bytes) -> list[bytes]:
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]


@dataclass(slots=True)
class Op:
    """``order`` counts the completions of one recorder: two callbacks may fall into the same nanosecond. ``ends`` should be 1."""

    number: str
    actor: str
    kind: str
    begin_ns: int
    ledger: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    end_ns: int | None = None
    outcome: str = "unknown"
    value: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    order: int = 0
    ends: int = 0

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def __str__(self) -> str:
        shown = {key: value for key, value in {**self.args, **self.value}.items() if key not in ("digests", "runs", "fragments")}
        return f"{self.number} {self.actor} {self.kind} {self.outcome}{f' ({self.error})' if self.error else ''} {shown}"


class Recorder:
    """One per process. Thread-safe. ``name`` makes the numbers of several recorders differ."""

    def __init__(self, path: Path | str, name: str = "") -> None:
        self.path = Path(path)
        self.ops: list[Op] = []
        self._name = name
        self._lock = threading.Lock()
        self._ended = 0
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begin(self, actor: str, kind: str, ledger: int | None = None, **args: Any) -> Op:
        with self._lock:
            op = Op(f"{self._name}{len(self.ops)}", actor, kind, time.monotonic_ns(), ledger, args)
            self.ops.append(op)
            self._write(
                {"at": "begin", "op": op.number, "actor": actor, "kind": kind, "ns": op.begin_ns, "ledger": ledger, "args": args},
            )
        return op

    def ok(self, op: Op, **value: Any) -> None:
        self._end(op, "ok", "", value)

    def fail(self, op: Op, error: BaseException | str) -> None:
        """An error that says that the effect is uncertain makes the outcome ``unknown``."""
        code = error if isinstance(error, str) else getattr(error, "code", type(error).__name__)
        self._end(op, "unknown" if getattr(error, "outcome_unknown", False) else "fail", str(code), {})

    def note(self, actor: str, kind: str, ledger: int | None = None, **args: Any) -> None:
        """Something without a duration."""
        self.ok(self.begin(actor, kind, ledger, **args))

    @contextmanager
    def during(self, actor: str, kind: str, ledger: int | None = None, **args: Any) -> Iterator[dict[str, Any]]:
        """The block's operation; the dictionary takes its value. An error is recorded and goes on."""
        op = self.begin(actor, kind, ledger, **args)
        value: dict[str, Any] = {}
        try:
            yield value
        except BaseException as error:
            self.fail(op, error)
            raise
        if "ledger" in value and op.ledger is None:
            op.ledger = value["ledger"]
        self.ok(op, **value)

    def _end(self, op: Op, outcome: str, error: str, value: dict[str, Any]) -> None:
        with self._lock:
            self._ended += 1
            line = {"at": "end", "op": op.number, "ns": time.monotonic_ns(), "outcome": outcome, "error": error, "order": self._ended}
            self._write({**line, "ledger": op.ledger, "value": value})
            _finish(op, line, value)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line, default=_encode, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def _finish(op: Op, line: dict[str, Any], value: dict[str, Any]) -> None:
    op.ends += 1
    if op.ends > 1:
        return  # the first answer stands; the checker counts (I-14)
    op.end_ns, op.outcome, op.error, op.order, op.value = line["ns"], line["outcome"], line["error"], line["order"], value


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"{value!r} cannot be part of a history")


def _decode(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["base64"]) if found.keys() == {"base64"} else found


def load(path: Path | str) -> list[Op]:
    """The operations of a file. A last line that was cut short by a crash is left out."""
    ops: dict[str, Op] = {}
    with open(path, "rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            take_line(json.loads(text, object_hook=_decode), ops)
    return list(ops.values())


def take_line(line: dict[str, Any], ops: dict[str, Op]) -> Op:
    """Put one line of a file into ``ops``; the operation that it belongs to."""
    if line["at"] == "begin":
        ops[line["op"]] = Op(line["op"], line["actor"], line["kind"], line["ns"], line["ledger"], line["args"])
    else:
        op = ops[line["op"]]
        op.ledger = line["ledger"]
        _finish(op, line, line["value"])
    return ops[line["op"]]


class Follower:
    """Reads a file that another process is writing; ``new`` gives what came since the last call."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.ops: dict[str, Op] = {}
        self._offset = 0

    def new(self) -> list[tuple[str, Op]]:
        """(``begin`` or ``end``, operation) of every complete new line."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for text in whole.splitlines():
            line = json.loads(text, object_hook=_decode)
            found.append((str(line["at"]), take_line(line, self.ops)))
        return found
