"""Appends to a log for which no thread waits (bk_core/client/entering.py). The thread that makes room hands in what had none at first."""

from __future__ import annotations

from collections.abc import Sequence

from bk_core.client.entering import Told
from bk_core.client.log.leadership import UNCERTAIN
from bk_core.client.log.parts import Append, again
from bk_core.client.log.writer import LogWriter
from bk_core.client.payloads import Buffer, Payloads
from bk_core.threads import SafeFuture


def enter_one(writer: LogWriter, payload: Buffer, told: Told) -> LogEntering:
    """Append one entry, or stand in line. Raises what ``LogWriter.append_future`` raises at once."""
    return _entered(writer, writer._payloads.one(payload), True, told)


def enter_many(writer: LogWriter, payloads: Sequence[Buffer], told: Told) -> LogEntering:
    """Append entries as one run, or stand in line. Raises what ``LogWriter.append_many_future`` raises at once."""
    return _entered(writer, writer._payloads.many(payloads), False, told)


def enter_run(writer: LogWriter, payloads: Buffer, offsets: Buffer, told: Told) -> LogEntering:
    """Append a run, or stand in line. Raises what ``LogWriter.append_run_future`` raises at once."""
    return _entered(writer, writer._payloads.run(payloads, offsets), False, told)


def begin_close(writer: LogWriter) -> None:
    """Begin what ``LogWriter.close`` waits for. Nothing more is appended, and who stands in line is sent away."""
    writer._ask_to_close()


def tell_losses(writer: LogWriter) -> None:
    """Raise the error of appends that failed if nobody was told it."""
    lost = writer._losses.take()
    if lost is not None:
        raise again(lost, UNCERTAIN)


def tell_left_open(writer: LogWriter) -> None:
    """Raise LeftOpenError if the client of the writer was closed before it."""
    if writer._left_open is not None:
        raise again(writer._left_open)


def _entered(writer: LogWriter, run: Payloads, single: bool, told: Told) -> LogEntering:
    writer._home.check("writer of a log")
    found = LogEntering(writer, Append(run, single), told)
    try:
        writer._window.admitted(found.token, found)
    finally:
        writer._own_thread(writer._take_in)
    return found


class LogEntering:
    """An append to a log, and its ticket in the line."""

    def __init__(self, writer: LogWriter, token: Append, told: Told) -> None:
        self.token = token
        self.future: SafeFuture[object] = token.future
        self._writer = writer
        self._told = told

    @property
    def admitted(self) -> bool:
        return self.token.admitted

    def release(self) -> None:
        """Pass on that the append was let in, or fail it because the writer takes no more. The writer's lock is held."""
        if self.token.admitted:
            self._told()
        elif not self.token.gone:
            try:
                self._writer._check()
            except Exception as error:
                self.token.future.set_exception(error)

    def leave(self) -> bool:
        """Wait for room no longer (bk_core/client/entering.py)."""
        if self._writer._window.give_up(self.token):
            return True
        self._writer._own_thread(self._writer._take_in)  # the next in line may enter
        return False

    def why_waiting(self) -> str:
        return f"log {self._writer.name!r}: {self._writer._window.bytes} bytes stayed unacknowledged; this run was not appended"


def abandon_and_wait(writer: LogWriter) -> None:
    """Abandon the writer and wait until it has left its ledgers. On a thread of the library, where ``abandon`` waits for nothing."""
    writer.abandon()
    writer._lock.until(lambda: writer._left_all, writer._timeout_s)
