"""Creates and lists logs, and changes their properties. Blocking functions over a client and its store.

A log is one value at store path ``logs/<name>`` (protocol/log/ledger_list.py), only ever changed by compare-and-set (``list_store``). Its
older segments are in history ledgers (``history``). Beside it, under the same log root: ``intents/<log>/<ledger id>`` for ledgers that
writers keep open (``intents``), and ``readers/<log>/<name>`` for durable first offsets. ``reader`` reads a log, ``writer`` writes one
exclusively, and ``janitor`` trims, cleans and deletes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from bk_core.arguments import Check, checked
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import LogClient, check_log_root, is_log_name, log_path, read_ledger_list, store_now_ms, update_timeout_s
from bk_core.client.repeating import after_a_try, until_definite
from bk_core.errors import InvalidArgumentError, LogExistsError, NodeExistsError
from bk_core.near import meant
from bk_core.protocol.log.codec import encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.segments import EMPTY, LogProperties

_FIELDS = Check("fields of a list, by name", lambda extra: isinstance(extra, Mapping))


@checked(extra=_FIELDS)
def create_log(
    client: LogClient,
    name: str,
    properties: LogProperties | None = None,
    *,
    exist_ok: bool = False,
    file_entries: bool = False,
    extra: Mapping[str, Any] = EMPTY,
) -> LedgerList:
    """Create an empty log, by default of raw entries, as ``LogWriter`` writes them. LogExistsError unless ``exist_ok``, which returns the
    log that is there. InvalidArgumentError without ``file_entries`` for the name of a file store's log (GRD-7). ``extra`` is what else a
    new list says."""
    check_not_of_files(name, file_entries)
    chosen = properties or LogProperties()
    chosen.check(str)
    if chosen.schema and chosen.entry_format == "raw":
        raise InvalidArgumentError(f"log {name!r}: a raw log has no columns: leave schema out, or entry_format", log=name)
    path = log_path(name)
    fresh = LedgerList(log_id=uuid.uuid4().hex, properties=chosen, cluster=client.store.cluster_id(), extra=extra)
    elsewhere = client.store.log_elsewhere(name)
    if elsewhere is not None:
        raise LogExistsError(f"an older program keeps a log {name!r} at {elsewhere}; log_root={elsewhere!r} opens it", log=name)
    data = encode(fresh)
    try:
        until_definite(lambda: client.store.create(path, data), time.monotonic() + update_timeout_s(client))
    except NodeExistsError:
        with after_a_try(True):
            found = read_ledger_list(client, name)
        if found.log_id == fresh.log_id or exist_ok:  # the first answer was lost (META-12), or somebody was there first
            return found
        raise LogExistsError(f"log {name!r} exists; exist_ok=True (--exist-ok) takes it as it is", log=name) from None
    return fresh


@checked()
def list_logs(client: LogClient) -> list[str]:
    """Names of all logs, sorted. A node whose name no log can have is left out. NoSuchLogRootError where the log root was given by hand and
    does not exist."""
    names = client.store.children("logs")
    if not names:
        check_log_root(client)
    return [name for name in names if is_log_name(name)]


@checked()
def set_properties(client: LogClient, name: str, /, **changes: Any) -> LedgerList:
    """Change properties of a log (fields of ``LogProperties``) for what is written from now on.

    InvalidArgumentError for an unknown one, for what cannot work, and for the entry format and the schema, which stay as they are.
    """
    known = {field.name for field in fields(LogProperties)} - {"extra"}
    unknown = sorted(set(changes) - known)
    if unknown:
        free = sorted(known - {"entry_format", "schema"})
        hint = meant(unknown[0], free) or f"those that can be changed are {', '.join(free)}"
        raise InvalidArgumentError(f"a log has no property {unknown[0]!r}; {hint}")

    def change(listed: LedgerList) -> LedgerList:
        """Marks that are too old by now go at once: a full list has no room for one more (JAN-6)."""
        wanted = replace(listed.properties, **changes)
        wanted.check(str)
        return listed.set_properties(wanted).forget_old_marks(store_now_ms(client))

    return update_ledger_list(client, name, change)
