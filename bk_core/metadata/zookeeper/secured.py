"""Connections to ZooKeeper by TLS, and what the failure of one tells."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from bk_core.errors import BkError
from bk_core.metadata.access import MetadataTls
from bk_core.protocol.session.reach import Reach

DEFAULT_PORT = 2281
"""The port of a ZooKeeper that speaks TLS, where the URI names none."""
_OTHER_HOST = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_LACKS_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


def connect(tls: MetadataTls, address: tuple[Any, ...], host: str, timeout_s: float) -> ssl.SSLSocket:
    """Return a connection whose handshake is done. ``host`` is the name that the certificate must have. Raises OSError, of which SSLError
    is one, also when a file of ``tls`` cannot be used any more."""
    deadline = time.monotonic() + timeout_s
    try:
        context = tls.context()
    except OSError:
        raise
    except Exception as error:  # any other would end kazoo's thread for good; a function's own words may hold the secret
        told = str(error.args[0]) if isinstance(error, BkError) else f"the function of the key's password failed ({type(error).__name__})"
        raise OSError(told) from None
    with socket.create_connection(address[:2], timeout_s) as plain:  # the wrapped one takes the descriptor away from it
        plain.settimeout(max(0.05, deadline - time.monotonic()))
        secured = context.wrap_socket(plain, server_hostname=host)
    secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return secured


def ready(readers: list[Any]) -> list[Any]:
    """Return those connections that have bytes which are decrypted already. The system does not know of them, so waiting for it may never
    end."""
    return [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]


def reach_of(error: OSError) -> tuple[Reach, str]:
    """Return what a failed handshake tells, with the words of the library."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reach = Reach.OTHER_HOST if error.verify_code in _OTHER_HOST else Reach.UNTRUSTED
        return reach, error.verify_message
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return Reach.CLOSES, ""
    if any(known in reason for known in _LACKS_TLS):
        return Reach.LACKS_TLS, ""
    return Reach.REFUSES_TLS, reason.replace("_", " ").lower() or error.strerror or ""
