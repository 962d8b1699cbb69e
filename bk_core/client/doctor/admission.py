"""Tells by which bookies this client is not admitted, and which options of the URI are about that (RR-19)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bk_core.client.doctor.probe import NOT_ADMITTED, BookieProbe, probe_bookies
from bk_core.display.words import counted
from bk_core.errors import BookieAuthError, BookieKerberosError, BookieRoleError, BookieSecurityError, BookieTlsError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.replication import may_begin
from bk_core.security import Security

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

ASKED_MAX = 16
"""The number of bookies that are asked at once, which is one round of probes; others are asked only if these do not settle the question."""
_CERTIFICATES = "bookie_ca_file (with bookie_cert_file and bookie_key_file, where bookies ask for a certificate)"
_PASSWORD = "bookie_user and bookie_password_file"


def refusing(probes: Iterable[BookieProbe]) -> list[BookieProbe]:
    """Return the probes of bookies that do not admit this client."""
    return [probe for probe in probes if probe.state == NOT_ADMITTED]


def told_refusing(refused: Collection[BookieProbe], of: int) -> str:
    """Return by how many of ``of`` bookies this client is not admitted, with the reason that the first of them gives."""
    first = next(iter(refused))
    which = f"{len(refused):,} of {counted(of, 'bookie')}" if of > 1 else "the bookie"
    verb = "does" if len(refused) == 1 else "do"
    return f"{which} {verb} not admit this client ({first.problem})"


def option_for(client: BookKeeper, refused: Iterable[BookieProbe]) -> str:
    """Return the advice for a client that is not admitted: the options of the URI that it lacks, or that are wrong."""
    return _option(client.config.bookie_security, next(iter(refused)).refusal)


def _option(security: Security | None, kind: type[BookieSecurityError] | None) -> str:
    if security is None:
        return f"give the URI the options of bookies: {_CERTIFICATES} for TLS, {_PASSWORD} for a password; the cluster's whole URI has them"
    if kind is not None and issubclass(kind, BookieKerberosError):
        return "see bookie_principal and bookie_keytab_file (or bookie_ticket_cache) in the URI"
    if kind is not None and issubclass(kind, BookieRoleError):
        return "see bookie_cert_file and bookie_key_file in the URI: the certificate has to name a role that bookies admit"
    if kind is not None and issubclass(kind, BookieTlsError):
        return f"see {_CERTIFICATES} in the URI"
    if security.auth is None:
        return f"add {_PASSWORD} to the URI, or bookie_principal and bookie_keytab_file for Kerberos"
    more = f"; where bookies speak TLS alone, add {_CERTIFICATES}" if security.tls is None else ""
    return f"see {_PASSWORD} in the URI{more}"


def refusal_told(client: BookKeeper, bookies: Collection[BookieId]) -> str:
    """Return a sentence about bookies that refused a read, with what to do. They are asked why, until one refuses again."""
    probes: list[BookieProbe] = []
    for probes in _asked(client, sorted(bookies)):
        if refusing(probes):
            break
    refused = refusing(probes)
    count = counted(len(bookies), "bookie")
    if not refused:
        unheard = [probe for probe in probes if not probe.answers]
        if not unheard:
            return f"{count} refused this client, and {'admits' if len(bookies) == 1 else 'admit'} it now: look again"
        return f"{count} refused this client, and {unheard[0].bookie} does not answer now ({unheard[0].problem}): look again when it does"
    verb = "does" if len(bookies) == 1 else "do"
    what = f"{count} {verb} not admit this client ({refused[0].problem}), so nothing is known of the copies there"
    return f"{what}: {option_for(client, refused)}"


def check_admitted(client: BookKeeper, what: str) -> None:
    """Ask registered bookies if they admit this client, all of them unless one of the first does. Raises BookieSecurityError, of the class
    of a refusal, if every bookie that answers refuses (RR-19); ``what`` is what does not begin then."""
    view = client.bookies()
    there = [*view.writable, *view.readonly]
    random.shuffle(there)
    probes: list[BookieProbe] = []
    for probes in _asked(client, there):
        if any(probe.answers for probe in probes):
            return
    refused = refusing(probes)
    if may_begin(0, len(refused)):  # nobody answers, or there is nobody
        return
    text = f"{what} does not begin: {told_refusing(refused, len(probes))}, so nothing would be known of the copies there"
    raise (refused[0].refusal or BookieAuthError)(f"{text}; {option_for(client, refused)}", bookie=refused[0].bookie)


def _asked(client: BookKeeper, bookies: Sequence[BookieId]) -> Iterator[list[BookieProbe]]:
    """Ask bookies in rounds, and yield after each round the probes of all that were asked so far."""
    probes: list[BookieProbe] = []
    for at in range(0, len(bookies), ASKED_MAX):
        probes.extend(probe_bookies(client, bookies[at : at + ASKED_MAX]).values())
        yield probes
