"""The page of queries: how far each one is behind the logs it reads, by its checkpoint in a file store; and the queries that write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bk_core.client.checkpoints.batches import StoreFolder
from bk_core.client.checkpoints.progress import CLOCKS, lags, read_progress
from bk_core.client.checkpoints.within import bases
from bk_core.client.files.upkeep import file_stores
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.history import read_log
from bk_core.display.words import id_text
from bk_core.errors import BkError, InvalidArgumentError
from bk_core.protocol.log.names import store_of
from bk_core.ui.layout import Page, World, age, amount, log_link, moment, shown
from bk_core.ui.markup import Child, Markup, empty, joined, section, sentence, table, tag

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

STORES_MAX = 50
LOGS_MAX = 200
WRITERS_SHOWN = 200
LAG_S = 5.0  # so old may the figures be


@dataclass(frozen=True, slots=True)
class Reading:
    """A log that a query reads: ``behind`` has the fields of ``bk query lag``. ``log`` is "" where a whole checkpoint could not be read."""

    checkpoint: str
    log: str = ""
    batch: int | None = None
    planned: int | None = None
    behind: Mapping[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Writing:
    """A query that writes to a log."""

    query: str
    log: str
    batch: int
    at_ms: int
    rows: int | None


def page(world: World) -> Page:
    """Return the page of queries."""
    client, password = world.client, world.password
    reading = world.answers.get(("reading",), lambda: list(_reading(client, password)), fresh_s=LAG_S, wait_s=2.5)
    writing = world.answers.get(("writing",), lambda: list(_writing(client)), fresh_s=LAG_S)
    about = (
        "Queries whose checkpoint is in a file store of this cluster, each by the last batch that it committed. "
        f"`bk query lag FOLDER` shows a checkpoint in a directory. Time behind: {CLOCKS}."
    )
    rows = shown(reading, _reading_rows, what="the checkpoints")
    parts = [
        section("Queries that read logs", rows, tag("p", sentence(about), class_="soft"), name="reading"),
        section(
            "Queries that write to logs",
            shown(writing, lambda found: _writing_rows(world, found), what="the lists of logs"),
            name="writing",
        ),
    ]
    return Page("Queries", joined(parts), "/queries", refreshes=True)


def _reading(client: BookKeeper, password: bytes) -> Iterator[Reading]:
    stores = file_stores(client)
    for name in stores[:STORES_MAX]:
        try:
            with FileStoreView.open(client, name, password=password) as view:
                yield from _of_store(client, name, view)
        except BkError as error:
            yield Reading(name, problem=str(error))
    if len(stores) > STORES_MAX:
        yield Reading("...", problem=f"only the first {STORES_MAX} of {len(stores):,} file stores are looked at")


def _of_store(client: BookKeeper, name: str, view: FileStoreView) -> Iterator[Reading]:
    for base in bases(view):
        checkpoint = f"{name}{base.rstrip('/')}"
        try:
            progress = read_progress(StoreFolder(view, base))
        except InvalidArgumentError as error:  # it has not begun, or reads no log
            yield Reading(checkpoint, problem=str(error.args[0]))
            continue
        for one in lags(client, progress):
            yield Reading(checkpoint, one.log, progress.committed, progress.planned, one.facts)


def _reading_rows(found: list[Reading]) -> Markup:
    if not found:
        return empty("No checkpoint is in a file store of this cluster.")
    columns = ["checkpoint", "log", "#rows behind", "#bytes behind", "#time behind", "#batch committed", "#planned", "note"]
    rows: list[list[Child]] = []
    for one in found:
        name = tag("span", f"bk://{one.checkpoint}", class_="id")
        if one.behind is None:
            rows.append([name, None, None, None, None, None, None, one.problem])
            continue
        seconds = one.behind["secondsBehind"]
        late = None if seconds is None else age(0, int(seconds * 1000))
        rows.append(
            [
                name,
                log_link(one.log),
                one.behind["rowsBehind"],
                amount(one.behind["bytesBehind"]),
                late,
                id_text(one.batch),
                id_text(one.planned),
                one.behind["note"],
            ]
        )
    return table(columns, rows, caption="Queries that read logs")


def _writing(client: BookKeeper) -> Iterator[Writing]:
    names = [name for name in client.logs() if store_of(name) is None]
    for name in names[:LOGS_MAX]:
        try:
            listed = read_log(client, name).listed
        except BkError as error:
            if error.retriable:
                raise
            continue
        for query, mark in islice(listed.committed.items(), WRITERS_SHOWN):
            yield Writing(query, name, mark.batch_id, mark.at_ms, mark.rows)


def _writing_rows(world: World, found: list[Writing]) -> Markup:
    if not found:
        return empty("No query has committed a batch to a log.")
    newest = sorted(found, key=lambda one: -one.at_ms)[:WRITERS_SHOWN]
    rows: list[list[Child]] = [
        [
            tag("span", one.query, class_="id"),
            log_link(one.log),
            id_text(one.batch),
            one.rows,
            moment(one.at_ms),
            age(one.at_ms or None, world.now_ms),
        ]
        for one in newest
    ]
    return table(["query", "log", "#last batch", "#rows", "committed (UTC)", "#age"], rows, caption="Queries that write to logs")
