"""Keeps a bookie from believing an empty or a foreign metadata store that its ledgers are gone (BKE-1, BKE-2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from bk_core.bookie.identity import cookie_of, version_file, write_durably
from bk_core.errors import CollectionRefusedError, InvalidArgumentError, NoNodeError
from bk_core.metadata.cookies import Cookie, decode_cookie
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.bookie.suspicion import Sight, judge_cluster, may_believe, may_drop
from bk_core.protocol.ledger.metadata import BookieId

log = logging.getLogger("bk_core.bookie")

TOLD = "collect-up-to"  # a file in the bookie's directory, with the number of ledgers that one round may drop


class ClusterGuard:
    """Refuses collections, on the metadata thread. ``on_foreign`` is told after each look if the store holds another cluster."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId, directory: Path, on_foreign: Callable[[bool], None]) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._directory = directory
        self._on_foreign = on_foreign

    def require_home(self) -> None:
        """Raise CollectionRefusedError unless the store holds the cluster that this bookie has signed in to (BKE-1). Call it before a list
        of ledgers is read, and again before anything is done about ledgers that are missing from it."""
        mine = decode_cookie(version_file(self._directory).read_bytes())
        found = self._store.instance_id()
        sight = judge_cluster(mine.instance_id, found, self._differences(found))
        self._on_foreign(sight is Sight.FOREIGN)
        if not may_believe([sight]):
            if found == mine.instance_id:
                cookie = "no cookie of it" if sight is Sight.GONE else "a cookie that is not its own"
                why = f"the metadata store has {cookie}; `bk bookie cookie put` gives it back"
            else:
                why = f"the metadata store holds {sight.value} (instance id {found}, this bookie's is {mine.instance_id})"
                why += "; restore the cluster's metadata, or stop this bookie"
            raise CollectionRefusedError(f"bookie {self._bookie_id} keeps all it has: {why}", bookie=self._bookie_id)

    def _differences(self, instance_id: str | None) -> tuple[str, ...] | None:
        try:
            stored = decode_cookie(self._store.read_cookie(self._bookie_id).data)
        except NoNodeError:
            return None
        mine: Cookie = cookie_of(self._bookie_id, self._directory, instance_id)
        return mine.differences(stored)

    def require_few(self, count: int, held: int, *, floor: int, share: float) -> None:
        """Raise CollectionRefusedError if too many ledgers are missing at once, and nobody has agreed (BKE-2)."""
        if not may_drop(count, held, floor=floor, share=share, told=self._told()):
            raise CollectionRefusedError(
                f"bookie {self._bookie_id} keeps all it has: {count:,} of its {held:,} ledgers are gone from the metadata store, more than "
                f"max({floor}, {share:.0%}) at once. If they were deleted on purpose, run `bk bookie collect {self._directory} "
                f"--up-to {count}`; else restore the cluster's metadata",
                bookie=self._bookie_id,
            )

    def done(self) -> None:
        """Note that a round was made; the agreement was for that round only."""
        (self._directory / TOLD).unlink(missing_ok=True)

    def _told(self) -> int:
        try:
            text = (self._directory / TOLD).read_text().strip()
        except FileNotFoundError:
            return 0
        if not text.isascii() or not text.isdigit():
            log.warning("%s does not hold a number; it is ignored", self._directory / TOLD)
            return 0
        return int(text)


def allow_collection(directory: Path, count: int) -> None:
    """Let the next collection of the bookie on ``directory`` drop ``count`` ledgers. Raises InvalidArgumentError if no bookie
    lives there."""
    if count < 1:
        raise InvalidArgumentError(f"{count} ledgers: name at least one")
    if not version_file(directory).exists():
        raise InvalidArgumentError(f"{directory} is not the directory of an embedded bookie: there is no {version_file(directory)}")
    write_durably(directory / TOLD, f"{count}\n".encode())
