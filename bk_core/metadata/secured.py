"""Connections to metadata stores by TLS, and what the failure of one tells."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from bk_core.metadata.access import MetadataTls
from bk_core.protocol.session.reach import Reach
from bk_core.secrets import told_of
from bk_core.tls_files import TlsFailure, failure_of

_REACH = {
    TlsFailure.UNTRUSTED: Reach.UNTRUSTED,
    TlsFailure.OTHER_HOST: Reach.OTHER_HOST,
    TlsFailure.REFUSED: Reach.REFUSES_TLS,
    TlsFailure.VERSION: Reach.OTHER_TLS,
    TlsFailure.ENDED: Reach.ENDS_TLS,
    TlsFailure.NO_TLS: Reach.LACKS_TLS,
    TlsFailure.CLOSED: Reach.CLOSES,
}


def connect(tls: MetadataTls, address: tuple[Any, ...], host: str, timeout_s: float) -> ssl.SSLSocket:
    """Return a connection whose handshake is done. ``host`` is the name that the certificate must have. Raises OSError, of which SSLError
    is one, also when a file of ``tls`` cannot be used any more."""
    deadline = time.monotonic() + timeout_s
    try:
        context = tls.context()
    except Exception as error:  # any other than OSError would end the thread of a library for good
        raise OSError(told_of(error, "reading the files of MetadataTls")) from None
    with socket.create_connection(address[:2], timeout_s) as plain:  # the wrapped one takes the descriptor away from it
        plain.settimeout(max(0.05, deadline - time.monotonic()))
        secured = context.wrap_socket(plain, server_hostname=host)
    secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return secured


def speaks_tls(target: Any, deadline: float) -> bool:
    """Return True if a server that does not answer the command answers a handshake: it waits for the rest of what it takes for one. Nobody
    is trusted for that, and nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(target[:2], max(0.05, deadline - time.monotonic())) as plain:
            plain.settimeout(max(0.05, deadline - time.monotonic()))
            with context.wrap_socket(plain):
                return True
    except ssl.SSLEOFError:
        return False
    except ssl.SSLError as error:
        return "alert" in str(error).lower()
    except OSError:
        return False


def ready(readers: list[Any]) -> list[Any]:
    """Return those connections that have bytes which are decrypted already. The system does not know of them, so waiting for it may never
    end."""
    return [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]


def reach_of(error: OSError) -> tuple[Reach, str]:
    """Return what a failed handshake tells, with the words of the library."""
    failure, words = failure_of(error)
    return _REACH[failure], words
