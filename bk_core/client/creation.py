"""Makes ledgers: chooses the bookies of a new one and stores its metadata. No bookie is contacted (CR-6)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from bk_core.arguments import brief
from bk_core.client.repeating import given_up
from bk_core.client.session import Session
from bk_core.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
    NotEnoughBookiesError,
)
from bk_core.metadata.store import MetadataStore, Version
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import GWQ_MARK, GWQ_SEAL, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import new_ensemble_striped, not_enough_known

_NAMING = "name those that serve in the URI: ?bookies=cookies is all that have a cookie, ?bookies=host:port,host:port,... those"


class Creation:
    """Makes ledgers for one client."""

    def __init__(self, session: Session, store: MetadataStore) -> None:
        self._session = session
        self._store = store

    def await_bookies(self, ensemble_size: int, write_quorum_size: int) -> None:
        """See ``BookKeeper.await_bookies``."""
        begun, pause, is_hopeful = time.monotonic(), 0.01, False
        while True:
            try:
                self._session.definite(lambda: self.new_ensemble(ensemble_size, write_quorum_size))
                return
            except NotEnoughBookiesError as error:
                if not is_hopeful:
                    self.check_known(ensemble_size, write_quorum_size)
                    is_hopeful = True
                left = begun + self._session.config.operation_timeout_s - time.monotonic()
                if left <= 0:
                    raise given_up(error, begun).nothing_done() from None
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.5)

    def check_known(self, ensemble_size: int, write_quorum_size: int) -> None:
        """Raise NotEnoughBookiesError if there would be too few bookies even if all came back that this cluster has ever had and not
        removed. Nothing is asked while enough are writable."""
        view = self._session.bookies()
        needed = write_quorum_size if self._session.config.opportunistic_striping else ensemble_size
        if len(view.writable) >= needed:
            return
        known = len({*self._session.definite(self._store.cookies), *view.writable, *view.readonly})
        if known < needed:
            raise not_enough_known(ensemble_size, known).nothing_done()

    def new_ensemble(self, size: int, write_quorum_size: int) -> tuple[str, ...]:
        """Return the bookies of a new ledger (CR-2). With opportunistic striping there may be fewer than ``size``; E is their number."""
        try:
            return self._session.placement.new_ensemble(size, write_quorum_size)
        except NotEnoughBookiesError:
            self._session.refresh_bookies()  # the watch may be a moment behind
        try:
            if self._session.config.opportunistic_striping:
                return new_ensemble_striped(self._session.placement, size, write_quorum_size)
            return self._session.placement.new_ensemble(size, write_quorum_size)
        except NotEnoughBookiesError as error:
            why = self._store.unregistered()
            if not why:
                raise
            raise error.retold(f"{error.args[0]}. {why[0].upper()}{why[1:]}; {_NAMING}") from None

    def create(self, metadata: LedgerMetadata, wanted: int | None) -> tuple[int, LedgerMetadata, Version]:
        """Store the metadata, and return the id that the ledger has, the metadata and its version.

        A generated id that is taken leads to another; an own earlier attempt is recognised by its token (CR-3, CR-4). A client that dies
        in here leaves nothing, or an empty OPEN ledger that nobody knows (CR-8).
        """
        data = metadata_codec.encode(metadata)
        while True:
            ledger_id = self._session.definite(self._store.new_ledger_id) if wanted is None else wanted
            try:
                return ledger_id, metadata, self._session.definite(partial(self._store.create_ledger, ledger_id, data))
            except NodeExistsError:
                mine = self._is_mine(ledger_id, metadata)
                if mine is not None:
                    return ledger_id, *mine
                if wanted is not None:
                    raise LedgerExistsError(f"ledger {wanted} exists already", ledger=wanted) from None

    def _is_mine(self, ledger_id: int, metadata: LedgerMetadata) -> tuple[LedgerMetadata, Version] | None:
        """Return the stored metadata, content and version read together, if it is this call's own earlier attempt (CR-4) that nobody has
        fenced since.

        A format without a token, or one that cannot be read, is somebody else's (CR-5). Created and deleted meanwhile: not ours either,
        and never to be created again.
        """
        try:
            stored = self._session.definite(lambda: self._store.read_ledger(ledger_id))
            found = metadata_codec.decode(stored.data)
        except (NoNodeError, MetadataFormatError):
            return None
        if found.creator_token is None or found.creator_token != metadata.creator_token or found.state is not LedgerState.OPEN:
            return None
        return found, stored.version


def custom_metadata(given: Mapping[str, bytes]) -> dict[str, bytes]:
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise ArgumentTypeError(f"custom must map text to bytes, not {key!r} to {type(value).__name__}")
        if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
            raise InvalidArgumentError(f"custom metadata {brief(key)} has a lone surrogate, which UTF-8 cannot hold")
        if key in (GWQ_MARK, GWQ_SEAL):
            raise InvalidArgumentError(f"custom metadata {key!r} is what guaranteed_write_quorum=True writes; use that")
    return dict(given)
