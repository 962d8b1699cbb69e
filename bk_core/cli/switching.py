"""Has a bookie turn read-only or writable, by its HTTP server or by a file in its directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bk_core.display.ledgers import DOWN
from bk_core.errors import BookieHttpError, InvalidArgumentError, MetadataFormatError, NoNodeError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

_TURN_S = 20.0  # for a bookie to see what it was asked, and to register anew
_LOOK_S = 0.1


def tell_read_only(client: BookKeeper, bookie: str, wanted: bool, address: str | None) -> str:
    """Tell a bookie to take no new ledgers, or to take them again, and return by which way it was told: "http" or "directory". ``address``
    is that of its HTTP server, where its registration does not name one, or with ``https://`` before it. Raises BookieHttpError, and
    InvalidArgumentError for an address that is none, or another bookie's."""
    from bk_core.bookie import standby
    from bk_core.client.doctor.http import http_address, owner_of, service_info, set_read_only

    if address is None:
        address = http_address(service_info(client, bookie))
    elif (owner := owner_of(client, address)) not in (None, bookie):
        text = f"the HTTP server at {address} is that of bookie {owner}, so nobody was asked"
        raise InvalidArgumentError(text, bookie=bookie)
    if address is not None:
        set_read_only(client, address, wanted)
        return "http"
    directory = directory_here(client, bookie)
    if directory is None:
        raise BookieHttpError(
            f"bookie {bookie} cannot be switched from here: its registration names no HTTP server, and the directory in its cookie is not "
            "that of an embedded bookie on this host. Apache's bookies need httpServerEnabled=true and a httpServerClass, such as "
            "org.apache.bookkeeper.http.vertx.VertxHttpServer; for an embedded bookie run this on its host. Nothing was changed",
            bookie=bookie,
        )
    standby.tell(directory, wanted)
    return "directory"


def directory_here(client: BookKeeper, bookie: str) -> Path | None:
    """Return the directory of an embedded bookie of this very cluster on this host; None if there is none."""
    from bk_core.bookie.identity import version_file
    from bk_core.metadata.cookies import decode_cookie

    try:
        stored = client.store.read_cookie(bookie).data
        directory = Path(decode_cookie(stored).ledger_dirs[0])
        same = version_file(directory).read_bytes() == stored and (directory / "address").exists()
    except (NoNodeError, MetadataFormatError, OSError, IndexError):
        return None
    return directory if same else None


def await_state(client: BookKeeper, bookie: str, wanted: str) -> str:
    """Wait until a bookie is registered as ``wanted``, for 20 seconds at most, and return its state then."""
    from bk_core.client.doctor.bookies import states_of

    deadline = time.monotonic() + _TURN_S
    while True:
        state = states_of(client).get(bookie, DOWN)
        if state == wanted or time.monotonic() > deadline:
            return state
        time.sleep(_LOOK_S)
