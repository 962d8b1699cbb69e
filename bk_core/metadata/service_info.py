"""BookieServiceInfo, which a bookie's registration holds (metadata.md 4.3, 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from google.protobuf.message import DecodeError

from bk_core.display.words import host_and_port
from bk_core.errors import BookieUnavailableError, InvalidArgumentError, MetadataFormatError
from bk_core.protocol.ledger._proto.ledger_formats_pb2 import BookieServiceInfo as Message
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.metadata_codec import is_bookie_id

BOOKIE_PROTOCOL = "bookie-rpc"


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def bookie_service_info(host: str, port: int) -> ServiceInfo:
    """Return the registration of an embedded bookie, which has no HTTP server. It has no extension ``tls``, which Java's bookies name if
    they have TLS."""
    return ServiceInfo((Endpoint("bookie", port, host, BOOKIE_PROTOCOL),))


def encode_service_info(info: ServiceInfo) -> bytes:
    message = Message()
    for endpoint in info.endpoints:
        if not 0 < endpoint.port < 65536:
            raise InvalidArgumentError(f"port {endpoint.port} is outside 1..65535")
        message.endpoints.add(
            id=endpoint.id.encode(),
            port=endpoint.port,
            host=endpoint.host.encode(),
            protocol=endpoint.protocol.encode(),
            auth=[name.encode() for name in endpoint.auth],
            extensions=[name.encode() for name in endpoint.extensions],
        )
    for key, value in info.properties.items():
        message.properties.add(key=key.encode(), value=value.encode())
    return message.SerializeToString()


def decode_service_info(data: bytes) -> ServiceInfo:
    """Return the BookieServiceInfo in ``data``; empty data is one without endpoints. Raises MetadataFormatError for anything else."""
    try:
        message = Message.FromString(data)
        endpoints = tuple(
            Endpoint(
                endpoint.id.decode(),
                endpoint.port,
                endpoint.host.decode(),
                endpoint.protocol.decode(),
                tuple(name.decode() for name in endpoint.auth),
                tuple(name.decode() for name in endpoint.extensions),
            )
            for endpoint in message.endpoints
        )
        properties = {entry.key.decode(): entry.value.decode() for entry in message.properties}
    except (DecodeError, UnicodeDecodeError):
        raise MetadataFormatError("registration of a bookie is not a BookieServiceInfo message") from None
    return ServiceInfo(endpoints, MappingProxyType(properties))


def address_of(bookie_id: BookieId, registration: bytes | None, *, registered: bool = False) -> tuple[str, int]:
    """Return host and port from the registration, else from an id ``host:port``. Raises BookieUnavailableError if neither has them.

    A missing or unreadable registration falls back to the id, so that replicas of old ledgers stay readable (metadata.md 4.4); with
    ``registered`` a missing one is an error, too.
    """
    if registered and registration is None:
        raise BookieUnavailableError(f"bookie {bookie_id} is not registered", bookie=bookie_id)
    if registration:
        try:
            for endpoint in decode_service_info(registration).endpoints:
                if endpoint.protocol == BOOKIE_PROTOCOL and endpoint.host and 0 < endpoint.port < 65536:
                    return endpoint.host, endpoint.port
        except MetadataFormatError:
            pass
    found = host_and_port(bookie_id)
    if found is not None:
        return found
    raise BookieUnavailableError(f"bookie {bookie_id} is not registered and its id is not host:port", bookie=bookie_id)


def is_address(bookie_id: BookieId) -> bool:
    """Return True for an id ``host:port``, which is its own address."""
    return host_and_port(bookie_id) is not None


def check_bookie_id(bookie_id: BookieId) -> BookieId:
    if not is_bookie_id(bookie_id):
        raise InvalidArgumentError(f"{bookie_id!r} is not a bookie id: letters, digits and . - _ : only")
    return bookie_id
