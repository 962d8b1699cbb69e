"""The errors of a recovery that has to stop (RC-21)."""

from __future__ import annotations

from bk_core.errors import BkError, MetadataError, RecoveryFailedError, RecoveryTimeoutError, UnauthorizedError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.recover.questions import Inquiry
from bk_core.protocol.wire.messages import Status


def undecided(ledger_id: int, why: str, inquiry: Inquiry, digest_note: str = "", tried: str = "") -> BkError:
    """Return the error of a recovery that could not decide. If there was nothing but silence it is a timeout, if a key was refused it says
    so, and else the recovery failed.

    ``digest_note`` follows the answers with status OK whose body does not fit its digest. ``tried`` tells for how long bookies were asked
    that could not be reached (RD-13).
    """
    unknown = sorted(inquiry.unknown.items())
    for position, status in unknown:
        if status is Status.UNAUTHORIZED:
            return key_refused(ledger_id, inquiry.ensemble[position])
    silent = bool(unknown) and all(status is Status.TIMEOUT for _, status in unknown)
    kind = RecoveryTimeoutError if silent else RecoveryFailedError
    answers = f"no good answer from {inquiry.unknown_text()}{tried}"
    message = f"ledger {ledger_id} stays IN_RECOVERY: {why}; {answers}; try again when they are back"
    return kind(message + (digest_note if Status.OK in inquiry.unknown.values() else ""), ledger=ledger_id)


def key_refused(ledger_id: int, bookie: BookieId) -> UnauthorizedError:
    return UnauthorizedError(
        f"bookie {bookie} refused the password of ledger {ledger_id}, or a client without `security`", ledger=ledger_id, bookie=bookie
    )


def store_error(ledger_id: int, error: Exception | None) -> BkError:
    return error if isinstance(error, BkError) else MetadataError(f"metadata of ledger {ledger_id}: {error}", ledger=ledger_id)
