"""Fault points: places inside Spark's processes where a fault can be made to happen from outside. Nothing here is in the product.

A point has the name of a step. An *order* is a file ``<step>@<n>`` of JSON in the cell's directory; a process that comes to the step takes
the lowest one by an atomic rename to ``fired.<step>@<n>.<pid>``, so each order fires once in all processes, and does what it says:

    do          pass, kill, kill_driver, kill_executor, raise, hold, expire, cut, lose_answer, ask
    batch, partition, attempt      only there (absent: anywhere)
    pid         kill_driver: whom
    what        ask: what the harness shall do meanwhile

The steps of our own code are found by wrapping stable methods: the metadata store's (``intents/``, ``logs/``, ledgers) and the
write handle's; in the driver the one that performs what Spark asks of a checkpoint in ledgers, whose steps are called ``RENAME`` before
and ``RENAME_done`` after it, when the answer is not sent yet; ``CREATE_1`` and ``OPEN_1`` are the requests that only ask where the second
ones, ``CREATE_2`` and ``OPEN_2``, shall go. An error there is a connection that ends without an answer.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOLD_S = 150.0  # longer than a second driver needs to start and to run
RELEASE = "release"


class InjectedError(Exception):
    """Raised by a fault point."""


@dataclass
class _Place:
    """The place of this process: Spark gives it one task, or one call, at a time."""

    directory: Path | None = None
    phase: str = ""
    batch: int | None = None
    partition: int | None = None
    attempt: int | None = None


_here = _Place()
_installed = False
_gateway_installed = False


def arm(directory: str | None) -> None:
    """Take orders from ``directory`` from now on; None: from nowhere."""
    _here.directory = Path(directory) if directory else None
    if directory and not _installed:
        _install()


def arm_gateway(directory: str) -> None:
    """Take orders also where requests about checkpoints are answered, which is in the driver's Python."""
    arm(directory)
    if not _gateway_installed:
        _install_gateway()


@contextmanager
def phase(name: str, batch: int | None = None, partition: int | None = None, attempt: int | None = None) -> Iterator[None]:
    """The step that the process is within: ``write``, ``commit``, ``abort``, ``read`` or ``plan``."""
    before = (_here.phase, _here.batch, _here.partition, _here.attempt)
    _here.phase, _here.batch, _here.partition, _here.attempt = name, batch, partition, attempt
    try:
        yield
    finally:
        _here.phase, _here.batch, _here.partition, _here.attempt = before


def point(step: str) -> None:
    """The process is at ``step``. Usually nothing happens."""
    if _here.directory is None:
        return
    order = _take(_here.directory, step)
    if order is not None:
        _obey(order)


def _take(directory: Path, step: str) -> dict[str, Any] | None:
    for path in sorted(directory.glob(f"{step}@*")):
        try:
            order: dict[str, Any] = json.loads(path.read_text())
            if any(order.get(key) not in (None, getattr(_here, key)) for key in ("batch", "partition", "attempt")):
                continue
            path.rename(directory / f"fired.{path.name}.{os.getpid()}")
        except FileNotFoundError:  # another process was faster
            continue
        return order
    return None


def _obey(order: dict[str, Any]) -> None:
    action = order["do"]
    if action == "pass":
        return
    if action in ("kill", "kill_driver", "kill_executor"):
        if action != "kill":
            victim = order["pid"] if action == "kill_driver" else _executor()
            os.kill(victim, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "raise":
        raise InjectedError("on order")
    if action == "lose_answer":
        from bk_core.errors import MetadataOutcomeUnknownError

        raise MetadataOutcomeUnknownError("the answer was lost, on order")
    if action == "hold":
        _wait_for(_directory() / RELEASE)
    elif action == "ask":
        _ask(str(order["what"]))
    elif action in ("expire", "cut"):
        stores = _stores()
        if not stores:
            raise InjectedError(f"nothing to {action}: this process has no metadata store yet")
        from tests.faults.metadata import kind_of

        for store in stores:
            getattr(kind_of(store), action)(store)
    else:
        raise InjectedError(f"unknown order {action!r}")


def _directory() -> Path:
    assert _here.directory is not None
    return _here.directory


def _ask(what: str) -> None:
    """The harness does it and says when it is done."""
    beside = _directory() / f".ask.{os.getpid()}"
    beside.write_text(what)
    question = _directory() / f"ask.{os.getpid()}.{time.monotonic_ns()}"
    beside.rename(question)
    _wait_for(question.with_name(question.name.replace("ask.", "answer.", 1)))


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + HOLD_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise InjectedError(f"waited in vain for {path.name}")
        time.sleep(0.02)


def _executor() -> int:
    """The JVM that this Python worker works for."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return next(int(parent.pid) for parent in psutil.Process().parents() if parent.name() == "java")


# --- the metadata store's session and connection ----------------------------------------------------------------------------


def _stores() -> list[Any]:
    from bk_core.metadata.tree.store import TreeStore

    return [found for found in gc.get_objects() if isinstance(found, TreeStore) and found._base_link.connected]


# --- the steps of our own code ----------------------------------------------------------------------------------------------


def _install() -> None:
    global _installed
    _installed = True
    from bk_core.client.ledger.write_handle import WriteHandle
    from bk_core.metadata.tree.store import TreeStore

    def of_create(path: str, *_: Any) -> str:
        return {"write": "intent"}.get(_here.phase, "") if path.startswith("intents/") else ""

    def of_write(path: str, *_: Any) -> str:
        return {"commit": "cas"}.get(_here.phase, "") if path.startswith("logs/") else ""

    _around(TreeStore, "create", of_create)
    _around(TreeStore, "write", of_write)
    _around(TreeStore, "create_ledger", lambda *_: {"write": "create"}.get(_here.phase, ""))
    _around(TreeStore, "delete_ledger", lambda *_: {"commit": "janitor"}.get(_here.phase, ""))
    append_run_future = WriteHandle.append_run_future

    @functools.wraps(append_run_future)
    def append(self: Any, payloads: Any, offsets: Any, **named: Any) -> Any:
        """A run of several entries goes in two halves, so that there is something between two adds however few rows there are."""
        if _here.phase != "write":
            return append_run_future(self, payloads, offsets, **named)
        point("first_add")
        bounds = array("q", memoryview(offsets).cast("B").cast("q"))
        middle = (len(bounds) - 1) // 2
        first = append_run_future(self, payloads, bounds[: middle + 1], **named) if middle else None
        if first is not None:
            point("add")
        future = append_run_future(self, payloads, bounds[middle:], **named)
        result = future.result

        def answered(timeout: float | None = None) -> Any:
            point("ack")
            if first is not None:
                first.result(timeout)
            return result(timeout)

        future.result = answered  # type: ignore[method-assign]
        return future

    WriteHandle.append_run_future = append  # type: ignore[method-assign]


def _around(owner: type, name: str, step_of: Callable[..., str]) -> None:
    """Points before (``step``) and after (``step_done``) each call that ``step_of`` names."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        step = step_of(*arguments)
        if not step:
            return original(self, *arguments, **named)
        point(step)
        result = original(self, *arguments, **named)
        point(f"{step}_done")
        return result

    setattr(owner, name, wrapped)


def _install_gateway() -> None:
    global _gateway_installed
    _gateway_installed = True
    from bk_spark.checkpoint.operations import STEP, Operations

    def of_request(request: Any, _: Any) -> str:
        operation = request.query.get("op", "").upper()
        if operation in ("CREATE", "OPEN"):
            return f"{operation}_2" if STEP in request.query else f"{operation}_1"
        return {"LISTSTATUS_BATCH": "LISTSTATUS", "GETFILELINKSTATUS": "GETFILESTATUS"}.get(operation, operation)

    _around(Operations, "handle", of_request)
