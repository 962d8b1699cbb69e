"""The answers of replicas that gave no entry, and the choice of the one to report (RD-6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bk_core.errors import BkError, NoSuchEntryError, ReadError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status

DENIALS = frozenset((Status.NO_ENTRY, Status.NO_LEDGER))


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why one replica was no help. With ``status`` None it sent something else than was asked for (RD-8), which never proves
    absence."""

    status: Status | None
    text: str

    @property
    def denial(self) -> bool:
        """True for a definite denial (replication-protocol.md 0.3)."""
        return self.status in DENIALS

    @property
    def weight(self) -> int:
        """The rank of the failure: a real error beats a denial, and any other real error beats "not available" (RD-6)."""
        if self.denial:
            return 0
        return 1 if self.status is Status.UNAVAILABLE else 2


def failure_of(status: Status) -> Failure:
    text = "no such entry" if status in DENIALS else status.name.lower().replace("_", " ")
    return Failure(status, text)


STRANGER = "; where bookies take no stranger, say who you are with `security`, or by options such as bookie_user in the URI"


def decisive(failures: Iterable[Failure]) -> Failure:
    """Return the failure to report: the first of those with the highest weight."""
    return max(failures, key=lambda f: f.weight)


def read_error(
    ledger_id: int,
    entry_id: int,
    ensemble: Sequence[BookieId],
    failures: Mapping[int, Failure],
    replicas: int,
    digest_note: str = "",
    tried: str = "",
) -> BkError:
    """Return the error of a read: NoSuchEntryError only if all ``replicas`` denied. The message names each replica and its answer (RD-6).

    ``context["status"]`` of a ReadError is the name of the decisive status, or "DIGEST" for a bad copy; then the message ends with
    ``digest_note``. ``tried`` follows the answers and tells for how long bookies were asked that could not be reached (RD-13).
    """
    answers = ", ".join(f"{ensemble[p]}: {failure.text}" for p, failure in sorted(failures.items()))
    if len(failures) == replicas and all(failure.denial for failure in failures.values()):
        return NoSuchEntryError(
            f"entry {entry_id} of ledger {ledger_id} is on none of its bookies ({answers})", ledger=ledger_id, entry=entry_id
        )
    main = decisive(failures.values())
    status = "DIGEST" if main.status is None else main.status.name
    message = f"entry {entry_id} of ledger {ledger_id} cannot be read: {main.text} ({answers}){tried}"
    if main.status is Status.UNAUTHORIZED:
        message += STRANGER
    return ReadError(message + (digest_note if main.status is None else ""), ledger=ledger_id, entry=entry_id, status=status)
