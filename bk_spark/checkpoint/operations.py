"""WebHDFS's operations over the stores that are open in this driver: ``/webhdfs/v1/<name>/<path>?op=...``.

A file goes both ways in two steps, as WebHDFS has it: the first request is answered with an address that the second one brings the bytes
to, or takes them from. What is not here is answered with an UnsupportedOperationException that says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from bk_core.errors import BkError
from bk_core.near import meant
from bk_core.protocol.files.content import FileStatus
from bk_core.protocol.files.paths import ROOT, normal
from bk_spark.checkpoint import answers
from bk_spark.checkpoint.answers import Answer, Refusal
from bk_spark.checkpoint.http_parts import BadRequest, Body, PeerGone, Request, lower, upper
from bk_spark.checkpoint.staging import CheckpointFiles
from bk_spark.checkpoint.uploads import Uploads

PREFIX = "/webhdfs/v1"
STEP = "bkstep"
LIST_MAX = 1000
INT_DIGITS_MAX = 18
WARN_AGAIN_S = 60.0  # the same failure of the same checkpoint
WARNED_MAX = 256  # failures that are remembered: a request may have any name
log = logging.getLogger("bk_spark.checkpoint")

_WHOLE_SPACE = FileStatus(ROOT, True, 0, 0, 0)


class NotOpen(Refusal):
    """A checkpoint that is not open in this driver. ``known``: those that are. ``is_closed``: this program has closed it."""

    def __init__(self, name: str, known: list[str], *, is_closed: bool) -> None:
        line, near = f"bk_spark.checkpoint_location(spark, {name!r}, ...)", meant(name, known)
        told = f"no checkpoint {name!r} is open in this driver: open it with {line}{f'; {near}' if near else ''}"
        if is_closed:
            told = (
                f"the checkpoint {name!r} was closed in this driver by bk_spark.checkpoint.close, which ends the queries that use it: open "
                f"it again with {line}, then start the query"
            )
        super().__init__(403, answers.JAVA_IO, told)


class Operations:
    """Answers authorised requests. ``files``: the open stores by name. ``url``: where clients reach the gateway, e.g. http://127.0.0.1:40001."""

    def __init__(self, files: Mapping[str, CheckpointFiles], url: str) -> None:
        self._files, self._url, self._uploads = files, url, Uploads()
        self.closed: set[str] = set()  # stores that the program has closed since they were open
        self._warned: OrderedDict[tuple[str, str], float] = OrderedDict()  # the latest last
        self._warning = threading.Lock()

    def handle(self, request: Request, body: Body) -> Answer:
        """An answer to whatever was asked; BadRequest and PeerGone pass."""
        op = upper(request.query.get("op", ""))
        try:
            operation = _OPERATIONS.get((request.method, op))
            if operation is None:
                raise _unsupported(request.method, op)
            name, path = self._place(request.path)
            return operation(self, request, body, name, path)
        except Refusal as refusal:
            if isinstance(refusal, NotOpen):
                self._warn(request, "BK-NOT-OPEN", refusal)
            return answers.refused(refusal)
        except BkError as error:
            failed = answers.refusal(error, _name_in(request))
            if failed.status == answers.FAILED:
                self._warn(request, error.code, failed)
            return answers.refused(failed)
        except EOFError as error:
            return answers.refused(Refusal(403, answers.END_OF_FILE, str(error)))
        except (BadRequest, PeerGone):
            raise
        except Exception:
            log.exception("a defect of the checkpoint gateway, in %s", op)
            return answers.refused(Refusal(500, answers.JAVA_IO, f"{op}: a defect of the checkpoint gateway; the driver's log has more"))

    def _warn(self, request: Request, code: str, refusal: Refusal) -> None:
        """Warn in the driver's log, because Spark hides the cause of some failures (CANNOT_WRITE_STATE_STORE). Not for each of many
        tasks."""
        key, now = (_name_in(request), code), time.monotonic()
        with self._warning:
            if now - self._warned.get(key, -WARN_AGAIN_S) < WARN_AGAIN_S:
                return
            self._warned[key] = now
            self._warned.move_to_end(key)
            if len(self._warned) > WARNED_MAX:
                self._warned.popitem(last=False)
        path = request.path.removeprefix(PREFIX)
        log.warning("checkpoint %r: %s of %s failed: %s", key[0], upper(request.query.get("op", "")), path, refusal)

    # --- where --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _place(path: str) -> tuple[str, str]:
        """The name of the store, and the path in it; no name for the root of all."""
        if path != PREFIX and not path.startswith(PREFIX + "/"):
            raise Refusal(404, answers.NOT_FOUND, f"WebHDFS begins with {PREFIX}/")
        name, _, rest = normal(path[len(PREFIX) :] or ROOT)[1:].partition("/")
        return name, f"/{rest}"

    def _of(self, name: str) -> CheckpointFiles:
        """Refused where no store of this name is open, with the line that opens it. For a FileNotFoundException Spark's ``exists`` is
        false, which is an answer and no error."""
        files = self._files.get(name)
        if files is None:
            if not name:
                raise Refusal(403, answers.JAVA_IO, "the root holds the checkpoints that are open in this driver; only they can be changed")
            raise NotOpen(name, list(self._files), is_closed=name in self.closed)
        return files

    # --- looking ------------------------------------------------------------------------------------------------------------

    def _file_status(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.one_status(self._status(name, path))

    def _status(self, name: str, path: str) -> FileStatus:
        return self._of(name).status(path) if name else _WHOLE_SPACE

    def _list(self, name: str, path: str) -> list[FileStatus]:
        if name:
            return self._of(name).listing(path)
        return [FileStatus(f"/{name}", True, 0, 0, 0) for name in sorted(list(self._files))]

    def _is_file(self, name: str, path: str, found: list[FileStatus]) -> bool:
        return len(found) == 1 and found[0].path == path and bool(name)

    def _list_status(self, request: Request, body: Body, name: str, path: str) -> Answer:
        found = self._list(name, path)
        return answers.fine(answers.statuses(found, self._is_file(name, path, found)))

    def _list_batch(self, request: Request, body: Body, name: str, path: str) -> Answer:
        after = request.query.get("startafter", "")
        if name:
            found, remaining = self._of(name).listing_part(path, after, LIST_MAX)
        else:
            left = [status for status in self._list(name, path) if status.name > after]
            found, remaining = left[:LIST_MAX], max(0, len(left) - LIST_MAX)
        return answers.batch(found, self._is_file(name, path, found), remaining)

    def _content_summary(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.summary(*self._of(name).summary(path))

    def _home(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.fine({"Path": ROOT})

    def _trash(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.fine({"Path": f"/{name}/.Trash" if name else "/.Trash"})

    def _server_defaults(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.server_defaults()

    def _block_locations(self, request: Request, body: Body, name: str, path: str) -> Answer:
        status = self._status(name, path)
        offset, length = _number(request, "offset", 0), _number(request, "length", status.size)
        return answers.blocks(status.size, offset, length, self._url.partition("://")[2].rpartition(":")[0])

    def _there(self, request: Request, body: Body, name: str, path: str) -> Answer:
        """Answer a request to set what the store does not keep (permissions, owners, times): it succeeds if there is such a path."""
        self._status(name, path)
        return answers.fine()

    # --- contents -----------------------------------------------------------------------------------------------------------

    def _open(self, request: Request, body: Body, name: str, path: str) -> Answer:
        files = self._of(name)
        if STEP not in request.query:
            if files.status(path).is_directory:
                raise Refusal(403, answers.NOT_FOUND, f"{path} is a directory")
            return self._elsewhere(request)
        length = _number(request, "length", -1)
        wanted, chunks = files.open(path, _number(request, "offset", 0), None if length < 0 else length)
        return Answer(200, stream=_begun(chunks), length=wanted)

    def _create(self, request: Request, body: Body, name: str, path: str) -> Answer:
        files = self._of(name)
        flags = upper(request.query.get("createflag", "")).split(",")
        overwrite, parents = _flag(request, "overwrite", "OVERWRITE" in flags), _flag(request, "createparent", True)
        if "APPEND" in flags:
            raise _unsupported("PUT", "CREATE with APPEND")
        if STEP not in request.query:
            files.check_create(path, overwrite, parents)
            return self._elsewhere(request)
        with self._uploads.admitted(body.pieces(), files.patience_s) as pieces:
            files.create(path, pieces, overwrite, parents)
        return Answer(201)

    def _elsewhere(self, request: Request) -> Answer:
        return Answer(307, location=f"{self._url}{request.target}&{STEP}=2")

    # --- changes ------------------------------------------------------------------------------------------------------------

    def _mkdirs(self, request: Request, body: Body, name: str, path: str) -> Answer:
        if path == ROOT:
            return answers.told(self._status(name, path).is_directory)
        self._of(name).mkdirs(path)
        return answers.told(True)

    def _rename(self, request: Request, body: Body, name: str, path: str) -> Answer:
        wanted = request.query.get("destination", "")
        if not wanted:
            raise Refusal(400, answers.BAD_ARGUMENT, "RENAME without destination: the new path is missing")
        where, destination = self._place(PREFIX + wanted)
        if where != name:
            raise Refusal(403, answers.JAVA_IO, f"{name!r} and {where!r} are two checkpoints; a file is not renamed from one to another")
        files, options = self._of(name), request.query.get("renameoptions")
        if options is None:
            return answers.told(path != ROOT and files.rename_if_possible(path, destination))
        if path == ROOT or destination == ROOT:
            raise Refusal(403, answers.JAVA_IO, "the root of a checkpoint is not renamed")
        given = set(upper(options).split(","))
        if given - {"NONE", "OVERWRITE", "TO_TRASH"}:
            raise _unsupported("PUT", f"RENAME with {options}")
        files.rename(path, destination, overwrite="OVERWRITE" in given)
        return answers.fine()

    def _delete(self, request: Request, body: Body, name: str, path: str) -> Answer:
        return answers.told(self._of(name).delete(path, _flag(request, "recursive", False)))


def _name_in(request: Request) -> str:
    return request.path.removeprefix(PREFIX).strip("/").partition("/")[0]


def _begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, of which the first is there already: most of what can go wrong is told before the answer begins."""
    first = next(chunks, None)
    return chain(() if first is None else (first,), chunks)


def _number(request: Request, name: str, otherwise: int) -> int:
    text = request.query.get(name)
    if text is None or text == "null":
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= INT_DIGITS_MAX):
        raise Refusal(400, answers.BAD_ARGUMENT, f"{name} is no number of bytes")
    return int(text)


def _flag(request: Request, name: str, otherwise: bool) -> bool:
    text = lower(request.query.get(name, ""))
    if text not in ("", "null", "true", "false"):
        raise Refusal(400, answers.BAD_ARGUMENT, f"{name} is true or false")
    return otherwise if text in ("", "null") else text == "true"


def _unsupported(method: str, op: str) -> Refusal:
    shown = op if op.replace("_", "").replace(" ", "").isalnum() and len(op) < 60 else "operation of that name"
    return Refusal(
        400, answers.UNSUPPORTED, f"a checkpoint in ledgers has no {shown} ({method}): it is there for Spark's checkpoints alone"
    )


_Operation = Callable[[Operations, Request, Body, str, str], Answer]
_OPERATIONS: dict[tuple[str, str], _Operation] = {
    ("GET", "GETFILESTATUS"): Operations._file_status,
    ("GET", "GETFILELINKSTATUS"): Operations._file_status,
    ("GET", "LISTSTATUS"): Operations._list_status,
    ("GET", "LISTSTATUS_BATCH"): Operations._list_batch,
    ("GET", "GETCONTENTSUMMARY"): Operations._content_summary,
    ("GET", "GETHOMEDIRECTORY"): Operations._home,
    ("GET", "GETTRASHROOT"): Operations._trash,
    ("GET", "GETSERVERDEFAULTS"): Operations._server_defaults,
    ("GET", "GETFILEBLOCKLOCATIONS"): Operations._block_locations,
    ("GET", "CHECKACCESS"): Operations._there,
    ("GET", "OPEN"): Operations._open,
    ("PUT", "CREATE"): Operations._create,
    ("PUT", "MKDIRS"): Operations._mkdirs,
    ("PUT", "RENAME"): Operations._rename,
    ("PUT", "SETPERMISSION"): Operations._there,
    ("PUT", "SETOWNER"): Operations._there,
    ("PUT", "SETTIMES"): Operations._there,
    ("DELETE", "DELETE"): Operations._delete,
}
