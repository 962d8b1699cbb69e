"""Clients that a cluster must not take, and clients that must not take a cluster: each has its error at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import bk_core
from bk_core.errors import BkError, BookieAuthError, BookieTlsError, UnauthorizedError
from tests.integration.test_secured_bookies import QUICK_S, THREE
from tests.secured_matrix.table import EMBEDDED, Cell
from tests.secured_matrix.worlds import BOB, World, asked

_PATIENCE_S = 3600.0
WITHOUT_SECURITY = (UnauthorizedError, "or a client without `security`")
"""The error of a client that was given no ``security``: it sends its request without a handshake, and the refusal names no cause."""


@dataclass(frozen=True)
class Refusal:
    """The URI options of a client, and the error that it must get; with ``kind`` None it is served."""

    options: Mapping[str, str]
    kind: type[BkError] | None
    text: str


def wrong_secret(world: World) -> Refusal:
    """A wrong password, a principal that is not admitted, or a user where bookies ask for none."""
    tls, tickets = world.keys.tls(world.place.transport), world.keys.tickets
    if world.place.auth == "gssapi":
        assert tickets is not None
        return Refusal(tls | {"bookie_principal": BOB, "bookie_keytab_file": str(tickets.bob)}, BookieAuthError, "does not admit that name")
    user = world.keys.auth("digest")
    if world.place.auth == "digest":
        wrong = tls | user | {"bookie_password_file": world.keys.wrong_password}
        return Refusal(wrong, BookieAuthError, "does not take this client .SASL user 'bookkeeper-ann'.")
    return Refusal(tls | user, BookieAuthError, "authenticates nobody")


def nothing_shown(world: World) -> Refusal:
    """Nothing, where bookies ask who it is."""
    tls = world.keys.tls(world.place.transport)
    return Refusal(tls, BookieAuthError, "wants (it to|clients that) authenticate") if tls else Refusal({}, *WITHOUT_SECURITY)


def certificate(world: World) -> Refusal:
    """No certificate where bookies ask for one; an authority that is not theirs; or TLS where they have none."""
    auth = world.keys.auth(world.place.auth)
    if world.place.transport == "mutual":
        return Refusal(auth | world.keys.tls("tls"), BookieTlsError, "may want a client certificate")
    if world.place.transport == "tls":
        return Refusal(auth | {"bookie_ca_file": world.keys.stranger.certificate}, BookieTlsError, "that is not trusted")
    return Refusal(auth | world.keys.tls("tls"), BookieTlsError, "does not speak TLS")


def without_tls(world: World) -> Refusal:
    """No TLS where bookies have it. Apache's serve such a client all the same (wire-protocol.md 10.4)."""
    auth = world.keys.auth(world.place.auth)
    if world.place.bookies != EMBEDDED:
        return Refusal(auth, None, "")
    return Refusal(auth, BookieAuthError, "perhaps because this client comes without TLS") if auth else Refusal({}, *WITHOUT_SECURITY)


REFUSALS: Mapping[str, Callable[[World], Refusal]] = {
    "wrong secret": wrong_secret,
    "shows nothing": nothing_shown,
    "certificate": certificate,
    "without TLS": without_tls,
}


def play_refusal(world: World, protocol: Any, name: str) -> Cell:
    """Connect with what is wrong and write."""
    refusal = REFUSALS[name](world)
    uri = asked(world.cluster.uri, refusal.options)
    if refusal.kind is None:
        with bk_core.connect(uri, protocol=protocol) as client, client.create_ledger(**THREE) as ledger:
            ledger.append(b"x")
        return Cell("argued", "Apache's bookies serve clients without TLS also where they have it (wire-protocol.md 10.4), as was seen")
    with bk_core.connect(uri, protocol=protocol, operation_timeout_s=_PATIENCE_S) as client:
        begun = time.monotonic()
        with pytest.raises(refusal.kind, match=refusal.text) as told:
            client.create_ledger(**THREE).append(b"x")
        assert type(told.value) is refusal.kind and time.monotonic() - begun < QUICK_S
    return Cell("refused", f"{refusal.kind.__name__}: {refusal.text}")
