"""The answers of replicas that gave no entry, and the choice of the one that is reported (RD-6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bk_core.errors import BkError, NoSuchEntryError, ReadError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status

DENIALS = frozenset((Status.NO_ENTRY, Status.NO_LEDGER))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one replica was no help. ``status`` None: what it sent is not what was asked for (RD-8), which is never absence."""

    status: Status | None
    text: str

    @property
    def denial(self) -> bool:
        """A definite negative (replication-protocol.md 0.3)."""
        return self.status in DENIALS

    @property
    def weight(self) -> int:
        """RD-6: a real error beats a denial, and any other real error beats "not available"."""
        if self.denial:
            return 0
        return 1 if self.status is Status.UNAVAILABLE else 2


def failure_of(status: Status) -> Failure:
    text = "no such entry" if status in DENIALS else status.name.lower().replace("_", " ")
    return Failure(status, text)


def decisive(failures: Iterable[Failure]) -> Failure:
    """The failure to report: the first of the weightiest."""
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
    """RD-6: NoSuchEntryError only if all ``replicas`` denied; the message names each replica and what it said.

    ``context["status"]`` of a ReadError is the decisive status's name, "DIGEST" for a bad copy: then ``digest_note`` stands at the end.
    ``tried`` stands behind the answers: for how long bookies were asked that could not be reached (RD-13).
    """
    answers = ", ".join(f"{ensemble[p]}: {failure.text}" for p, failure in sorted(failures.items()))
    if len(failures) == replicas and all(failure.denial for failure in failures.values()):
        return NoSuchEntryError(
            f"entry {entry_id} of ledger {ledger_id} is on none of its bookies ({answers})", ledger=ledger_id, entry=entry_id
        )
    main = decisive(failures.values())
    status = "DIGEST" if main.status is None else main.status.name
    message = f"entry {entry_id} of ledger {ledger_id} cannot be read: {main.text} ({answers}){tried}"
    return ReadError(message + (digest_note if main.status is None else ""), ledger=ledger_id, entry=entry_id, status=status)
