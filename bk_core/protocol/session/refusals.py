"""Bookies that this client is not admitted to, or does not trust: explains errors (LINK-10)."""

from __future__ import annotations

from bk_core.errors import BkError, BookieSecurityError, OperationTimeoutError, ReadError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status


class Refusals:
    """The refusals of one client that hold. ``explained`` may be called from any thread, everything else from one."""

    def __init__(self) -> None:
        self._errors: dict[BookieId, BookieSecurityError] = {}

    def happened(self, bookie: BookieId, error: BookieSecurityError) -> bool:
        """Note a refusal. Return True if this is news, which a log should have once."""
        before = self._errors.pop(bookie, None)
        self._errors[bookie] = error
        return before is None or before.args[0] != error.args[0]

    def over(self, *bookies: BookieId) -> None:
        """Forget the refusals of bookies: one admitted this client, is not registered any more, or its last attempt failed for another
        reason."""
        for bookie in bookies:
            self._errors.pop(bookie, None)

    def explained(self, error: BkError) -> BookieSecurityError | None:
        """Return the error of an operation that lacked bookies as the refusal that is its cause, or None if none is. Where bookies refuse
        for several reasons, it is of the class of the latest."""
        held = tuple(self._errors.values())
        if not held or isinstance(error, OperationTimeoutError):  # a refusal is told at once, so it is not what took so long
            return None
        if isinstance(error, ReadError) and error.context.get("status") != Status.NOT_ADMITTED.name:
            return None
        texts = dict.fromkeys(str(one.args[0]) for one in held)
        return type(held[-1])("; ".join((error.args[0], *texts)), **error.context)
