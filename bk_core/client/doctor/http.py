"""Has the HTTP server of Apache's bookies, where they have one, make a bookie read-only or writable."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from bk_core.display.words import host_and_port, host_port, meet
from bk_core.errors import BookieHttpError, InvalidArgumentError, MetadataFormatError
from bk_core.metadata.service_info import BOOKIE_PROTOCOL, ServiceInfo, decode_service_info
from bk_core.protocol.ledger.metadata import BookieId

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

TIMEOUT_S = 10.0
READ_ONLY = "/api/v1/bookie/state/readonly"
_ANSWER_MAX = 1 << 20
_SCHEMES = ("http", "https")
_EVERYWHERE = ("", "0.0.0.0", "::")


def service_info(client: BookKeeper, bookie: BookieId) -> ServiceInfo | None:
    """Return what a registered bookie says of itself, None if it is not registered or says nothing that can be understood."""
    found = client.store.registration(bookie)
    try:
        return None if found is None else decode_service_info(found.data)
    except MetadataFormatError:
        return None


def http_address(info: ServiceInfo | None) -> str | None:
    """Return ``host:port`` of a bookie's HTTP server; None if it has none. One that listens at every address of its host, as Apache's do by
    default, is at the host of the bookie itself."""
    endpoints = info.endpoints if info is not None else ()
    for endpoint in endpoints:
        if endpoint.protocol == "http":
            own = next((one.host for one in endpoints if one.protocol == BOOKIE_PROTOCOL and one.host), endpoint.host)
            return host_port(own if endpoint.host in _EVERYWHERE else endpoint.host, endpoint.port)
    return None


def owner_of(client: BookKeeper, address: str) -> BookieId | None:
    """Return the registered bookie whose HTTP server is at ``address`` by its registration, None if no registration says so."""
    asked = host_and_port(check_server(address).partition("://")[2])
    view = client.store.bookies()
    for bookie in (*view.writable, *view.readonly):
        found = http_address(service_info(client, bookie))
        at = None if found is None else host_and_port(found)
        if asked is not None and at is not None and meet(asked, at):
            return bookie
    return None


def check_server(address: str) -> str:
    """Return the URL of an HTTP server that is given as ``host:port``, or with ``http://`` or ``https://`` before it. Raises
    InvalidArgumentError."""
    scheme, separator, rest = address.rpartition("://")
    if separator and scheme not in _SCHEMES:
        raise InvalidArgumentError(f"the HTTP server {address!r} begins with neither http:// nor https://")
    if not rest or "/" in rest.rstrip("/"):
        raise InvalidArgumentError(f"the HTTP server {address!r} is no HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    return f"{scheme or _SCHEMES[0]}://{rest.rstrip('/')}"


def set_read_only(client: BookKeeper, address: str, read_only: bool, *, timeout_s: float = TIMEOUT_S) -> None:
    """Have the bookie whose HTTP server is at ``address`` (``check_server``) go read-only or writable. With ``https://`` the client trusts
    and shows the certificates that it has for the bookies themselves. Raises BookieHttpError, and InvalidArgumentError for an address or
    files that cannot be used."""
    _put(check_server(address), READ_ONLY, {"readOnly": read_only}, _context(client), timeout_s)


def _context(client: BookKeeper) -> ssl.SSLContext:
    security = client.config.bookie_security
    return ssl.create_default_context() if security is None or security.tls is None else security.tls.context()


def _put(server: str, path: str, body: Any, context: ssl.SSLContext, timeout_s: float) -> None:
    url = f"{server}{path}"
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT")
    # A bookie is in the own network, where no proxy of the environment is meant.
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            answer.read(_ANSWER_MAX)
    except HTTPError as error:
        raise BookieHttpError(f"PUT {url} was answered {error.code} {error.reason}") from error
    except URLError as error:
        raise BookieHttpError(f"PUT {url} cannot be sent: {error.reason}{_hint(server, error.reason)}") from error
    except (HTTPException, OSError, ValueError) as error:
        raise BookieHttpError(f"PUT {url} failed: {error}{_hint(server, error)}") from error


def _hint(server: str, error: object) -> str:
    """Return what may be wrong where a server ends the connection without a word of HTTP, or the handshake."""
    if isinstance(error, ConnectionRefusedError):
        return ""
    if server.startswith("http://") and isinstance(error, (HTTPException, ConnectionError)):
        return f"; if it speaks TLS (httpServerTlsEnable=true), name it as {server.replace('http', 'https', 1)}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; this client trusts the authority that bookie_ca_file in its URI names, and without one those of the system"
    if isinstance(error, (ssl.SSLError, ConnectionError)):
        return "; Apache's server wants a certificate of the client, as bookie_cert_file and bookie_key_file in the URI name it"
    return ""
