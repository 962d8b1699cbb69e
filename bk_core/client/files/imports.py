"""The folder that an import of a checkpoint fills, and what is left of it when the process of the import was killed.

An import writes all files into a folder of its own in the root of the store. That folder then takes the place of all files in one change
(``FileStore.replace_all``, FS-20). Up to that change the old files are there, all of them and untouched; from then on the new ones are.
The folder of an import that was killed stays. It is no part of the checkpoint, and the next owner of the checkpoint deletes it. A query
does not open a checkpoint that has nothing else: it would begin anew, although the imported one says how far the query had come.

An import that makes the store says so in the list of its log (protocol/log/FORMAT.md), with its process, until it is done. So a store
without files is known as one of an import that was killed before it had its folder.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bk_core.client.log.intents import abandoned
from bk_core.client.log.janitor import INTENT_AGE_S
from bk_core.client.log.list_store import LogClient, change_ledger_list, list_if_any, log_path, now_ms, store_now_ms
from bk_core.client.log.live_writers import process_of, writer_tag
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.vanished import may_be_collected

_MADE_BY = "import"  # a field of the log's list

_OF_AN_IMPORT = re.compile(r"/\.importing-[0-9a-f]{32}(?:/|$)")


def new_import() -> str:
    """The path of a folder for the files of one import."""
    return f"/.importing-{uuid.uuid4().hex}"


def is_of_import(path: str) -> bool:
    """True of such a folder and of all that is in it."""
    return _OF_AN_IMPORT.match(path) is not None


def unfinished_imports(files: Any) -> tuple[list[str], bool]:
    """The folders of imports in a FileStore or a view of one, and True if the store has something else, too."""
    paths = [one.path for one in files.listing("/")]
    left = [path for path in paths if is_of_import(path)]
    return left, len(left) < len(paths)


def delete_unfinished_imports(store: Any) -> list[str]:
    """Delete what unfinished imports left. The owner of the store calls it: no other import goes on while it is one. Returns the folders
    that were deleted."""
    left, _ = unfinished_imports(store)
    for path in left:
        store.delete(path, recursive=True)
    return left


def import_mark() -> Mapping[str, Any]:
    """Return what the list of a store's log says if an import in this process makes the store."""
    return {_MADE_BY: json.loads(writer_tag(now_ms()))}


def is_made_by_import(client: LogClient, log: str) -> bool:
    """Return True if an import made the store with this log. False where there is none."""
    listed = list_if_any(client, log)
    return listed is not None and process_of(listed.extra.get(_MADE_BY)) is not None


def forget_import(client: LogClient, log: str) -> None:
    """Note that the import that made the store with this log is done. Where its files are deleted later, that was somebody's will."""

    def change(listed: LedgerList) -> LedgerList:
        return replace(listed, extra={name: value for name, value in listed.extra.items() if name != _MADE_BY})

    if is_made_by_import(client, log):
        change_ledger_list(client, log, change)


def is_left_by_import(client: LogClient, log: str, listed: LedgerList) -> bool:
    """Return True if an import made the store of this list, and its process is certainly gone, or so old that it is taken for gone
    (JAN-5, JAN-8). NoNodeError if the store is gone."""
    process = process_of(listed.extra.get(_MADE_BY))
    if process is None:
        return False
    created_ms = client.store.read(log_path(log)).created_ms
    age_ms = store_now_ms(client) - (process.created_ms if created_ms is None else created_ms)
    return may_be_collected(age_ms, int(INTENT_AGE_S * 1000), gone=abandoned(process), awaited=False)
