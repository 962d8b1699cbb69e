"""Answers of the gateway, in the words that WebHDFS's client understands: statuses of files as JSON, and errors as Java exceptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bk_core.client.files.words import is_unowned, of_checkpoint, was_deleted
from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    FileStoreTakenOverError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchPathError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import FileStatus

BLOCK = 128 << 20
OWNER = "bookkeeper"


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is JSON or nothing. ``stream``: the ``length`` bytes of a file instead, already begun, so that they are likely to come."""

    status: int
    body: bytes = b""
    location: str = ""
    stream: Iterator[bytes] | None = None
    length: int = 0


class Refusal(Exception):  # noqa: N818  # an answer, not a failure of the gateway
    """A request that the gateway answers with an exception of Java's, which the client throws where it was asked."""

    def __init__(self, status: int, java_class: str, message: str) -> None:
        super().__init__(message)
        self.status, self.java_class = status, java_class


FAILED = 500  # the store failed, where the others say what is there
JAVA_IO = "java.io.IOException"
NOT_FOUND = "java.io.FileNotFoundException"
EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
NO_DIRECTORY = "org.apache.hadoop.fs.ParentNotDirectoryException"
NOT_EMPTY = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
BAD_ARGUMENT = "java.lang.IllegalArgumentException"
UNSUPPORTED = "java.lang.UnsupportedOperationException"
END_OF_FILE = "java.io.EOFException"

# The first that fits decides.
_JAVA: tuple[tuple[type[BkError], int, str], ...] = (
    (NoSuchPathError, 404, NOT_FOUND),
    (PathExistsError, 403, EXISTS),
    (PathIsDirectoryError, 403, EXISTS),
    (PathNotDirectoryError, 403, NO_DIRECTORY),
    (DirectoryNotEmptyError, 403, NOT_EMPTY),
    (InvalidArgumentError, 400, BAD_ARGUMENT),
    (BkError, FAILED, JAVA_IO),
)


def refusal(error: BkError, name: str) -> Refusal:
    """The error of the store ``name`` as one of Java's. The text keeps our code, which is what remains of it in Spark's own errors."""
    status, java_class = next((status, java_class) for kind, status, java_class in _JAVA if isinstance(error, kind))
    told = of_checkpoint(error, name, password=b"", password_given_by="password=... of checkpoint_location", flags=False)
    text = str(told)
    if was_deleted(error):
        text = (
            f"[{error.code}] the checkpoint {name!r} was deleted while this driver used it (bk checkpoint rm --even-if-alive, for one): "
            "checkpoint_location makes an empty one of this name, with which a query begins anew"
        )
    elif is_unowned(error):
        text = (
            f"[{error.code}] the checkpoint {name!r} was taken from this driver, and no other one has it so far: `bk checkpoint gc "
            "--even-if-alive` does that, and so does a driver that is about to open it (`bk checkpoint show` names it). If there is none, "
            "open the checkpoint here again with checkpoint_location and start the query: no committed batch is lost"
        )
    elif isinstance(error, FileStoreTakenOverError):
        text = (
            f"[{error.code}] another driver opened the checkpoint {name!r}, or `bk checkpoint import --even-if-alive` did, so this one "
            "writes nothing there any more: stop this query, or open the checkpoint here again, which ends the other; two applications "
            f"need a name each. {told.args[0]}"
        )
    elif "checkpoint" not in told.context:
        text = f"{text} (checkpoint {name!r})"
    if isinstance(error, OperationTimeoutError | MetadataUnavailableError | NotEnoughBookiesError):
        text = f"{text}. If ZooKeeper or bookies are away, start the query again when they are back: no committed batch is lost"
    return Refusal(status, java_class, text)


def refused(refusal: Refusal) -> Answer:
    """The answer that makes the client throw."""
    told = {"exception": refusal.java_class.rpartition(".")[2], "javaClassName": refusal.java_class, "message": str(refusal)}
    return Answer(refusal.status, _json({"RemoteException": told}))


def fine(value: dict[str, Any] | None = None) -> Answer:
    """200 with the value as JSON, or with nothing."""
    return Answer(200, b"" if value is None else _json(value))


def told(value: bool) -> Answer:
    """The answer of operations that say if they did it."""
    return fine({"boolean": value})


def one_status(status: FileStatus) -> Answer:
    """A single FileStatus: the client knows the name."""
    return fine({"FileStatus": _status(status, "")})


def statuses(found: Iterable[FileStatus], of_file: bool) -> dict[str, Any]:
    """A list of them. That of a file has one status without a name, as HDFS gives it."""
    return {"FileStatuses": {"FileStatus": [_status(status, "" if of_file else status.name) for status in found]}}


def batch(found: list[FileStatus], of_file: bool, remaining: int) -> Answer:
    """A part of a long list."""
    return fine({"DirectoryListing": {"partialListing": statuses(found, of_file), "remainingEntries": remaining}})


def summary(length: int, files: int, directories: int) -> Answer:
    """Counts of all that lies below a path; there are no quotas."""
    counts = {"length": length, "fileCount": files, "directoryCount": directories}
    return fine({"ContentSummary": {**counts, "quota": -1, "spaceConsumed": length, "spaceQuota": -1, "typeQuota": {}}})


def blocks(size: int, offset: int, length: int, host: str) -> Answer:
    """A file as one block on the driver: readers of Spark's ask before they share out a file."""
    place = {"offset": offset, "length": max(0, min(length, size - offset)), "corrupt": False, "hosts": [host], "names": [host]}
    rest: dict[str, list[str]] = {"cachedHosts": [], "topologyPaths": [], "storageIds": [], "storageTypes": []}
    return fine({"BlockLocations": {"BlockLocation": [{**place, **rest}] if offset < size else []}})


def server_defaults() -> Answer:
    """The sizes that a client may ask for before it writes; no checksums, and no keys to encrypt with."""
    sizes = {"blockSize": BLOCK, "bytesPerChecksum": 512, "writePacketSize": 64 << 10, "replication": 1, "fileBufferSize": 4096}
    others = {"encryptDataTransfer": False, "trashInterval": 0, "checksumType": 0, "keyProviderUri": "", "defaultStoragePolicyId": 0}
    return fine({"FsServerDefaults": {**sizes, **others}})


def _status(status: FileStatus, name: str) -> dict[str, Any]:
    return {
        "pathSuffix": name,
        "type": "DIRECTORY" if status.is_directory else "FILE",
        "length": status.size,
        "owner": OWNER,
        "group": OWNER,
        "permission": "755" if status.is_directory else "644",
        "accessTime": status.modified_ms,
        "modificationTime": status.modified_ms,
        "blockSize": 0 if status.is_directory else BLOCK,
        "replication": 0 if status.is_directory else 1,
        "fileId": status.file_id,
        "childrenNum": status.children,
        "storagePolicy": 0,
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
