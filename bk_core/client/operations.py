"""Waiting for what the reactor thread does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from bk_core.client.session import Driver, Session
from bk_core.errors import OperationTimeoutError
from bk_core.protocol.effects import Effect
from bk_core.protocol.ledger.metadata import LedgerMetadata


def wait(future: Future[Any], timeout_s: float, what: str) -> Any:
    """The future's result; OperationTimeoutError names what was being done."""
    try:
        return future.result(timeout=timeout_s)
    except FutureTimeoutError:
        if future.done():
            raise
        raise OperationTimeoutError(f"{what} did not finish within {timeout_s:g} s; it may still take effect") from None


def run_machine(
    session: Session,
    ledger_id: int,
    machine: Any,
    start: Callable[[], list[Effect]],
    *,
    add_kind: str = "data",
    quorums: LedgerMetadata | None = None,
) -> Any:
    """Drive a machine to its one completion and wait for it."""
    future: Future[Any] = Future()
    driver = Driver(session, ledger_id, add_kind=add_kind)
    driver.machine = machine
    if quorums is not None:
        driver.set_quorums(quorums)
    driver.on_complete = lambda token, value: None if future.done() else future.set_result(value)
    driver.on_fail = lambda token, error: None if future.done() else future.set_exception(error)
    session.reactor.post(lambda: driver.perform(start()))
    try:
        return wait(future, session.config.operation_timeout_s, f"an operation on ledger {ledger_id}")
    finally:
        session.reactor.post(driver.close)
