"""The meaning of etcd's errors: if the request may have been done, if another server may help, and in which words it is told."""

from __future__ import annotations

from enum import Enum, auto

from bk_core.errors import MetadataDeniedError, MetadataError, MetadataOutcomeUnknownError, MetadataUnavailableError


class Meaning(Enum):
    LOST = auto()  # the answer; the request may be done now, later or never, and another server may answer
    TOKEN = auto()  # the token of the user has ended: nothing was done, and a new one may do
    NOT_TAKEN = auto()  # the user or the password
    COMPACTED = auto()  # the revision that was asked for is gone
    NO_LEASE = auto()  # the session has ended
    DENIED = auto()
    BUSY = auto()  # nothing was done, and it may be later
    FULL = auto()  # the database: etcd says so of the change with which it becomes too large, too, and that one is done
    REFUSED = auto()  # nothing was done, and nothing else will be


_BY_WORDS = (
    ("invalid auth token", Meaning.TOKEN),
    ("revision of auth store is old", Meaning.TOKEN),
    ("revision in header is old", Meaning.TOKEN),
    ("user name is empty", Meaning.NOT_TAKEN),
    ("user name not found", Meaning.NOT_TAKEN),
    ("authentication failed", Meaning.NOT_TAKEN),
    ("authentication is not enabled", Meaning.NOT_TAKEN),
    ("permission denied", Meaning.DENIED),
    ("required revision has been compacted", Meaning.COMPACTED),
    ("requested lease not found", Meaning.NO_LEASE),
    ("too many requests", Meaning.BUSY),
    ("database space exceeded", Meaning.FULL),
    ("message larger than max", Meaning.REFUSED),  # a request that the server did not read
)
_LOST = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "ABORTED", "DATA_LOSS", "RESOURCE_EXHAUSTED"})


def meaning_of(code: str, words: str) -> Meaning:
    """Return the meaning of an error, by the name of grpc's code and etcd's words."""
    found = next((meaning for known, meaning in _BY_WORDS if known in words), None)
    if found is not None:
        return found
    if code == "UNAUTHENTICATED":
        return Meaning.TOKEN
    if code == "PERMISSION_DENIED":
        return Meaning.DENIED
    return Meaning.LOST if code in _LOST else Meaning.REFUSED


def error_of(code: str, words: str, path: str, who: str, *, changes: bool = True) -> MetadataError:
    """Return the error of a request about a path, for all meanings but those of the session's own. ``who`` is the client's identity, and
    ``changes`` is False for a request that only reads."""
    about = path or "a transaction"
    match meaning_of(code, words):
        case Meaning.LOST:
            return MetadataOutcomeUnknownError(f"the answer about {about} was lost ({code.lower().replace('_', ' ')})")
        case Meaning.DENIED:
            text = f"etcd's access control does not let this client do that with {about}; nothing was changed"
            return MetadataDeniedError(f"{text}. No role of this client ({who}) has the right to read or write there")
        case Meaning.BUSY | Meaning.TOKEN:
            return MetadataUnavailableError(f"etcd took no request about {about} just now ({words}); nothing was changed")
        case Meaning.FULL:
            text = f"etcd has no room ({words}), {about} was asked for: compact it, defragment it, and disarm the alarm NOSPACE"
            if changes:
                return MetadataOutcomeUnknownError(f"{text}; the change may have been made all the same")
            return MetadataError(f"{text}; this release of it does not even answer reads until then")
    return MetadataError(f"etcd refused the request about {about}: {words or code}; nothing was changed")
