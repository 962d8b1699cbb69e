from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerMetadata(_message.Message):
    __slots__ = ("quorum_size", "ensemble_size", "length", "last_entry_id", "state", "segment", "digest_type", "password", "ack_quorum_size", "ctime", "custom_metadata", "creator_token")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPEN: _ClassVar[LedgerMetadata.State]
        IN_RECOVERY: _ClassVar[LedgerMetadata.State]
        CLOSED: _ClassVar[LedgerMetadata.State]
    OPEN: LedgerMetadata.State
    IN_RECOVERY: LedgerMetadata.State
    CLOSED: LedgerMetadata.State
    class DigestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CRC32: _ClassVar[LedgerMetadata.DigestType]
        HMAC: _ClassVar[LedgerMetadata.DigestType]
        CRC32C: _ClassVar[LedgerMetadata.DigestType]
        DUMMY: _ClassVar[LedgerMetadata.DigestType]
    CRC32: LedgerMetadata.DigestType
    HMAC: LedgerMetadata.DigestType
    CRC32C: LedgerMetadata.DigestType
    DUMMY: LedgerMetadata.DigestType
    class Segment(_message.Message):
        __slots__ = ("ensemble_member", "first_entry_id")
        ENSEMBLE_MEMBER_FIELD_NUMBER: _ClassVar[int]
        FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
        ensemble_member: _containers.RepeatedScalarFieldContainer[bytes]
        first_entry_id: int
        def __init__(self, ensemble_member: _Optional[_Iterable[bytes]] = ..., first_entry_id: _Optional[int] = ...) -> None: ...
    class CustomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        value: bytes
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
    QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    CTIME_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATOR_TOKEN_FIELD_NUMBER: _ClassVar[int]
    quorum_size: int
    ensemble_size: int
    length: int
    last_entry_id: int
    state: LedgerMetadata.State
    segment: _containers.RepeatedCompositeFieldContainer[LedgerMetadata.Segment]
    digest_type: LedgerMetadata.DigestType
    password: bytes
    ack_quorum_size: int
    ctime: int
    custom_metadata: _containers.RepeatedCompositeFieldContainer[LedgerMetadata.CustomEntry]
    creator_token: int
    def __init__(self, quorum_size: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., length: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., state: _Optional[_Union[LedgerMetadata.State, str]] = ..., segment: _Optional[_Iterable[_Union[LedgerMetadata.Segment, _Mapping]]] = ..., digest_type: _Optional[_Union[LedgerMetadata.DigestType, str]] = ..., password: _Optional[bytes] = ..., ack_quorum_size: _Optional[int] = ..., ctime: _Optional[int] = ..., custom_metadata: _Optional[_Iterable[_Union[LedgerMetadata.CustomEntry, _Mapping]]] = ..., creator_token: _Optional[int] = ...) -> None: ...

class BookieServiceInfo(_message.Message):
    __slots__ = ("endpoints", "properties")
    class Endpoint(_message.Message):
        __slots__ = ("id", "port", "host", "protocol", "auth", "extensions")
        ID_FIELD_NUMBER: _ClassVar[int]
        PORT_FIELD_NUMBER: _ClassVar[int]
        HOST_FIELD_NUMBER: _ClassVar[int]
        PROTOCOL_FIELD_NUMBER: _ClassVar[int]
        AUTH_FIELD_NUMBER: _ClassVar[int]
        EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
        id: bytes
        port: int
        host: bytes
        protocol: bytes
        auth: _containers.RepeatedScalarFieldContainer[bytes]
        extensions: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, id: _Optional[bytes] = ..., port: _Optional[int] = ..., host: _Optional[bytes] = ..., protocol: _Optional[bytes] = ..., auth: _Optional[_Iterable[bytes]] = ..., extensions: _Optional[_Iterable[bytes]] = ...) -> None: ...
    class Property(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        value: bytes
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[BookieServiceInfo.Endpoint]
    properties: _containers.RepeatedCompositeFieldContainer[BookieServiceInfo.Property]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[BookieServiceInfo.Endpoint, _Mapping]]] = ..., properties: _Optional[_Iterable[_Union[BookieServiceInfo.Property, _Mapping]]] = ...) -> None: ...
