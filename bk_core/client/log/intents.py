"""Intents: each tells who is about to write a ledger that nothing lists yet. It is stored before the ledger is created, so that no ledger
is ever forgotten.

One value per ledger at store path ``intents/<log>/<ledger id>`` for data, ``intents/<log>/<ledger id>.history`` for history.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bk_core.client.log.list_store import LogClient, ledger_exists, now_ms, unused_ledger_id, update_timeout_s
from bk_core.client.log.too_few import of_log
from bk_core.client.processes import look_at, place_here, start_of_this
from bk_core.client.repeating import create_once, until_definite
from bk_core.errors import (
    BkError,
    ClientClosedError,
    MetadataFormatError,
    MetadataOutcomeUnknownError,
    NoNodeError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    VersionConflictError,
)
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, LOG_ROOT_KEY
from bk_core.protocol.log.segments import LogProperties
from bk_core.protocol.log.stored_json import loads
from bk_core.protocol.log.vanished import Place, certainly_gone, evidently_lives

T = TypeVar("T")

DATA = "data"
HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Intent:
    """The process that opened a ledger, and its host.

    ``started`` is the start time of process ``pid`` in clock ticks since boot; ``boot`` names the boot of the host and the process
    namespace in which ``pid`` means something. 0 and "": not known, so that only age tells.

    ``log_id`` is the log's, and ``cluster`` the identity of the cluster that issued the ledger id (OWN-5); "" where an earlier program
    did not note them.
    """

    ledger_id: int
    query_id: str
    host: str
    pid: int
    created_ms: int
    started: int = 0
    boot: str = ""
    purpose: str = DATA
    log_id: str = ""
    cluster: str = ""

    @property
    def is_claimed(self) -> bool:
        """True if a clean-up has claimed the ledger, so that it is nobody's any more (JAN-1)."""
        return not self.created_ms

    def claimed(self) -> Intent:
        """Return the intent as a clean-up leaves it that claims the ledger."""
        return replace(self, created_ms=0)

    def stored(self) -> dict[str, Any]:
        """Return what the metadata store keeps of it (bk_core/protocol/log/FORMAT.md)."""
        value = {"query": self.query_id, "host": self.host, "pid": self.pid, "createdMs": self.created_ms}
        whose = {key: text for key, text in (("logId", self.log_id), ("cluster", self.cluster)) if text}
        return {**value, "started": self.started, "boot": self.boot, **whose}


def _loaded(path: str, data: bytes) -> tuple[Intent, dict[str, Any]]:
    """Return the intent that a node holds, and its JSON, in which a later program may have more. Raises MetadataFormatError."""
    try:
        ledger_id, purpose = _named(path.rpartition("/")[2])
        value = loads(data)
        worker = (str(value["query"]), str(value["host"]), int(value["pid"]), int(value["createdMs"]))
        process = (int(value.get("started", 0)), str(value.get("boot", "")))
        whose = (str(value.get("logId", "")), str(value.get("cluster", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataFormatError(f"{path} in the metadata store is no intent to write a ledger: {error}") from None
    return Intent(ledger_id, *worker, *process, purpose, *whose), value


def intent_here(ledger_id: int, query_id: str, purpose: str = DATA, *, log_id: str = "", cluster: str = "") -> Intent:
    """The intent of this process."""
    here = place_here()
    worker = (here.host, os.getpid(), now_ms(), start_of_this(), here.boot)
    return Intent(ledger_id, query_id, *worker, purpose, log_id, cluster)


def abandoned(intent: Intent) -> bool:
    """The process that opened the ledger is certainly gone (JAN-5): it ran on this very host and runs no more. Else only age tells."""
    return certainly_gone(Place(intent.host, intent.boot), intent.started, place_here(), look_at(intent.pid))


def lives_here(intent: Intent) -> bool:
    """The process that opened the ledger is seen running on this host."""
    return evidently_lives(Place(intent.host, intent.boot), intent.started, place_here(), look_at(intent.pid))


def intent_path(log: str, ledger_id: int, purpose: str = DATA) -> str:
    return f"intents/{log}/{ledger_id}" + ("" if purpose == DATA else f".{purpose}")


def record_intent(client: LogClient, log: str, intent: Intent) -> bool:
    """False if there is an intent of that number already that is not this one: another cluster uses the log root, or used it (OWN-5)."""
    data = json.dumps(intent.stored()).encode()
    path = intent_path(log, intent.ledger_id, intent.purpose)
    deadline = time.monotonic() + update_timeout_s(client)
    # What is gone when it is looked at was another cluster's, or our own first try that a janitor has forgotten. Either way the number has
    # no intent now, and it is ours: a cluster never issues an id twice.
    while (recorded := create_once(client.store, path, data, deadline)) is None:
        pass
    return recorded


def change_intent(
    client: LogClient, log: str, ledger_id: int, change: Callable[[Intent], Intent | None], *, even_if_claimed: bool = False
) -> bool:
    """Change the intent of a data ledger by one compare-and-set. ``change`` gets the intent as it is and returns the one to write, or None
    to leave it so; what it raises is raised here.

    Return False if the intent is gone, if another process was faster or an answer was lost (the change may have been made then), or if a
    clean-up has claimed it, unless ``even_if_claimed``. Raises MetadataFormatError.
    """
    path = intent_path(log, ledger_id)
    try:
        node = _definite(client, lambda: client.store.read(path))
        before, value = _loaded(path, node.data)
        if before.is_claimed and not even_if_claimed:
            return False
        after = change(before)
        if after is not None:
            data = json.dumps({**value, **after.stored()}).encode()
            _definite(client, lambda: client.store.write(path, data, node.version))
    except (NoNodeError, VersionConflictError):
        return False
    return True


def forget_intent(client: LogClient, log: str, ledger_id: int, purpose: str = DATA) -> None:
    """The ledger is listed for good, or deleted. Absent is success, and so is an intent of another cluster, which stays (OWN-5)."""
    _definite(client, lambda: forget_own(client, log, ledger_id, purpose))


def forget_own(client: LogClient, log: str, ledger_id: int, purpose: str = DATA) -> None:
    """One try of ``forget_intent``.

    Ours may be forgotten already, by a janitor or by our first try, and since then another cluster at this log root may have come to the
    number. So the intent is read before each try. It is compared with the cluster that this client began with, which need not be there
    at the moment. Between the read and the deletion no other request of this client goes out; the store can compare no more, because an
    intent that was made anew has the version that it had before.
    """
    path = intent_path(log, ledger_id, purpose)
    intent = read_intent(client, log, path.rpartition("/")[2])
    if intent is not None and intent.cluster in ("", client.store.known_cluster or client.store.cluster_id()):
        client.store.delete(path)


def create_intended(
    client: LogClient,
    log: str,
    properties: LogProperties,
    *,
    log_id: str = "",
    query_id: str = "",
    purpose: str = DATA,
    password: bytes = b"",
    custom: Mapping[str, bytes] | None = None,
) -> Any:
    """A new ledger with the log's settings, whose intent was recorded before it came to be. Returns its writer.

    Intent and ledger both carry the log's id (OWN-5, OWN-6). A number under which another cluster has an intent at this log root is left
    out: that intent would be taken for this ledger's, and forgotten with it. Raises what creating a ledger raises; a shortage of bookies
    names the log. The intent is forgotten then, unless the ledger may have come to be. InvalidArgumentError before anything is done for
    properties that no ledger can have.
    """
    properties.check()
    digest_type = DigestType[properties.digest_type]
    cluster = client.store.cluster_id()
    whose = {LOG_KEY: log.encode(), LOG_ID_KEY: log_id.encode(), LOG_ROOT_KEY: client.store.log_root.encode()}  # LOG-9
    while True:
        ledger_id = unused_ledger_id(client)
        intent = intent_here(ledger_id, query_id, purpose, log_id=log_id, cluster=cluster)
        if record_intent(client, log, intent):
            break
    try:
        handle = client.create_ledger(
            ledger_id=ledger_id,
            ensemble_size=properties.ensemble_size,
            write_quorum_size=properties.write_quorum_size,
            ack_quorum_size=properties.ack_quorum_size,
            digest_type=digest_type,
            password=password,
            custom={**{key: value for key, value in whose.items() if value}, **(custom or {})},
            guaranteed_write_quorum=properties.guaranteed_write_quorum and purpose == DATA,
        )
    except (MetadataOutcomeUnknownError, OperationTimeoutError, ClientClosedError):  # it may come to be: the janitor looks after it
        raise
    except Exception as error:
        if _never_was(client, ledger_id):
            forget_intent(client, log, ledger_id, purpose)
        if isinstance(error, NotEnoughBookiesError):
            raise of_log(error, log) from None
        raise
    try:
        _keep_intent(client, log, intent)
    except BaseException:
        handle.abandon()
        raise
    return handle


def _keep_intent(client: LogClient, log: str, intent: Intent) -> None:
    """Record an intent again that a janitor has forgotten because its ledger was not there yet. A janitor that forgets it after that looks
    for the ledger once more."""
    with suppress(BkError):  # it matters only if this process dies before it lists the ledger
        if read_intent(client, log, intent_path(log, intent.ledger_id, intent.purpose).rpartition("/")[2]) is None:
            record_intent(client, log, intent)


def _never_was(client: LogClient, ledger_id: int) -> bool:
    """True if the ledger does not exist, for certain. Whatever failed, it may have failed after the ledger was created."""
    try:
        return not ledger_exists(client, ledger_id)
    except BkError:  # nobody can tell now: the janitor looks after it
        return False


def intents_of(client: LogClient, log: str) -> dict[int, Intent]:
    """All intents of a log, by ledger. Those of another cluster are left out (OWN-5): their ledger ids mean nothing here."""
    return {intent.ledger_id: intent for intent in _read(client, log)}


def _read(client: LogClient, log: str, purpose: str | None = None) -> Iterator[Intent]:
    """Yield the intents for ``purpose``, for any without one. The cluster is looked at after the children were listed, and before any of
    them is read."""
    children = [child for child in client.store.children(f"intents/{log}") if purpose in (None, _named(child)[1])]
    here = client.store.cluster_id()
    for child in children:
        intent = read_intent(client, log, child)
        if intent is not None and intent.cluster in ("", here):
            yield intent


def intended_ledgers(client: LogClient, log: str, purpose: str, since_ms: int = 0) -> list[int]:
    """Ledgers that somebody has intended for ``purpose`` since then, in this cluster (OWN-5)."""
    return [intent.ledger_id for intent in _read(client, log, purpose) if intent.created_ms >= since_ms]


def _named(child: str) -> tuple[int, str]:
    ledger_id, _, purpose = child.partition(".")
    return int(ledger_id), purpose or DATA


def read_intent(client: LogClient, log: str, child: str) -> Intent | None:
    """Return the intent of this node, or None if it is gone meanwhile."""
    path = f"intents/{log}/{child}"
    try:
        node = client.store.read(path)
    except NoNodeError:
        return None
    intent = _loaded(path, node.data)[0]
    return intent if intent.is_claimed else replace(intent, created_ms=node.created_ms or intent.created_ms)  # JAN-1


def _definite(client: LogClient, request: Callable[[], T]) -> T:
    return until_definite(request, time.monotonic() + update_timeout_s(client))
