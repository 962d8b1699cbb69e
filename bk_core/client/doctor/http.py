"""Has the HTTP server of Apache's bookies, where they have one, make a bookie read-only or writable."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from bk_core.display.words import host_port
from bk_core.errors import BookieHttpError, MetadataFormatError
from bk_core.metadata.service_info import ServiceInfo, decode_service_info
from bk_core.protocol.ledger.metadata import BookieId

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

TIMEOUT_S = 10.0
READ_ONLY = "/api/v1/bookie/state/readonly"
_ANSWER_MAX = 1 << 20
_OPENER = build_opener(ProxyHandler({}))  # a bookie is in the own network, where no proxy of the environment is meant


def service_info(client: BookKeeper, bookie: BookieId) -> ServiceInfo | None:
    """Return what a registered bookie says of itself, None if it is not registered or says nothing that can be understood."""
    found = client.store.registration(bookie)
    try:
        return None if found is None else decode_service_info(found.data)
    except MetadataFormatError:
        return None


def http_address(info: ServiceInfo | None) -> str | None:
    """Return ``host:port`` of a bookie's HTTP server; None if it has none."""
    for endpoint in info.endpoints if info is not None else ():
        if endpoint.protocol == "http":
            return host_port(endpoint.host, endpoint.port)
    return None


def set_read_only(address: str, read_only: bool, *, timeout_s: float = TIMEOUT_S) -> None:
    """Have the bookie whose HTTP server is at ``address`` go read-only or writable. Raises BookieHttpError."""
    _call("PUT", address, READ_ONLY, {"readOnly": read_only}, timeout_s)


def _call(method: str, address: str, path: str, body: Any, timeout_s: float) -> Any:
    url = f"http://{address}{path}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            text = answer.read(_ANSWER_MAX)
    except HTTPError as error:
        raise BookieHttpError(f"{method} {url} was answered {error.code} {error.reason}") from error
    except URLError as error:
        raise BookieHttpError(f"{method} {url} cannot be sent: {error.reason}") from error
    except (HTTPException, OSError, ValueError) as error:
        raise BookieHttpError(f"{method} {url} failed: {error}") from error
    try:
        return json.loads(text or b"null")
    except ValueError:
        return None
