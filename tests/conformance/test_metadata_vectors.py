"""Bytes that Apache BookKeeper's own classes wrote and read (metadata.md 9), taken over and given back unchanged."""

from __future__ import annotations

import pytest

from bk_core.metadata.cookies import Cookie, decode_cookie, encode_cookie
from bk_core.metadata.paths import layout_bytes, ledger_path, manager_of_layout
from bk_core.metadata.service_info import bookie_service_info, decode_service_info, encode_service_info
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec import decode, encode

_HEADER = "426f6f6b69654d65746164617461466f726d617456657273696f6e09"
_BOOKIES = "0a08626b313a333138310a08626b323a333138310a08626b333a33313831"
_FIRST = Fragment(0, ("bk1:3181", "bk2:3181", "bk3:3181"))
_SECOND = Fragment(10, ("bk1:3181", "bk4:3181", "bk3:3181"))

_V2_TEXT = """BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: %s
segment {
  ensembleMember: "bk1:3181"
  ensembleMember: "bk2:3181"
  ensembleMember: "bk3:3181"
  firstEntryId: 0
}
digestType: CRC32C
password: "pw"
ackQuorumSize: 2
"""
_V2_CUSTOM = r"""customMetadata {
  key: "app"
  value: "x\000\377\"\n"
}
"""


def _metadata(state: LedgerState = LedgerState.OPEN, **changes: object) -> LedgerMetadata:
    values: dict[str, object] = {
        "ensemble_size": 3, "write_quorum_size": 2, "ack_quorum_size": 2, "state": state, "fragments": (_FIRST,),
        "digest_type": DigestType.CRC32C, "password": b"pw",
    }  # fmt: skip
    return LedgerMetadata(**{**values, **changes})  # type: ignore[arg-type]


_CUSTOM = {"app": b'x\x00\xff"\n'}
_CLOSED = {"fragments": (_FIRST, _SECOND), "last_entry_id": 99, "length": 12345}
_V1 = {"password": b"", "stores_password": False, "has_digest": False, "digest_type": DigestType.CRC32, "format_version": 1}

_VECTORS = {
    "v3 open, custom metadata": (
        f"{_HEADER}330a4d08021003180020ffffffffffffffffff0128013220{_BOOKIES}100038034202707748025a0c0a0361707012057800ff220a6007",
        _metadata(custom=_CUSTOM, creator_token=7),
    ),
    "v3 open, creation time": (
        f"{_HEADER}330a4608021003180020ffffffffffffffffff0128013220{_BOOKIES}100038034202707748025080d095ffbc316007",
        _metadata(ctime_ms=1_700_000_000_000, creator_token=7),
    ),
    "v3 closed": (
        f"{_HEADER}330a590802100318b9602063280332200a08626b313a333138310a08626b323a333138310a08626b333a333138311000"
        "32200a08626b313a333138310a08626b343a333138310a08626b333a33313831100a38034202707748026000",
        _metadata(LedgerState.CLOSED, creator_token=0, **_CLOSED),
    ),
    "v2 open, custom metadata": ((_V2_TEXT % "OPEN" + _V2_CUSTOM).encode().hex(), _metadata(custom=_CUSTOM, format_version=2)),
    "v2 in recovery": ((_V2_TEXT % "IN_RECOVERY").encode().hex(), _metadata(LedgerState.IN_RECOVERY, format_version=2)),
    "v1 closed": (
        f"{_HEADER}310a320a330a31323334350a3009626b313a3331383109626b323a3331383109626b333a333138310a"
        "313009626b313a3331383109626b343a3331383109626b333a333138310a393909434c4f534544",
        _metadata(LedgerState.CLOSED, **_V1, **_CLOSED),
    ),
    "v1 in recovery": (
        f"{_HEADER}310a320a330a300a3009626b313a3331383109626b323a3331383109626b333a333138310a2d31303209434c4f534544",
        _metadata(LedgerState.IN_RECOVERY, **_V1),
    ),
}


@pytest.mark.parametrize("name", _VECTORS)
def test_ledger_metadata(name: str) -> None:
    stored, metadata = _VECTORS[name]
    data = bytes.fromhex(stored)
    assert decode(data) == metadata
    assert encode(metadata) == data
    assert encode(decode(data)) == data


def test_layout() -> None:
    data = bytes.fromhex(
        "320a6f72672e6170616368652e626f6f6b6b65657065722e6d6574612e48696572617263686963616c4c65646765724d616e61676572466163746f72793a31"
    )
    assert layout_bytes("hierarchical") == data
    assert manager_of_layout(data) == "hierarchical"


def test_service_info() -> None:
    data = bytes.fromhex("32220a06626f6f6b696510ed181a093132372e302e302e31220a626f6f6b69652d727063")
    assert encode_service_info(bookie_service_info("127.0.0.1", 3181)) == data
    assert dict(decode_service_info(data + bytes.fromhex("3a060a016b120176")).properties) == {"k": "v"}
    assert decode_service_info(data) == bookie_service_info("127.0.0.1", 3181)


def test_cookie() -> None:
    data = bytes.fromhex(
        "350a626f6f6b6965486f73743a20223132372e302e302e313a33313831220a6a6f75726e616c4469723a20222f642f6a220a6c6564676572446972733a20"
        "22315c742f642f6c220a696e7374616e636549643a202238613563316539302d303030302d343030302d383030302d303030303030303030303031220a"
    )
    cookie = Cookie("127.0.0.1:3181", ("/d/j",), ("/d/l",), "8a5c1e90-0000-4000-8000-000000000001")
    assert encode_cookie(cookie) == data
    assert decode_cookie(data) == cookie


_PATHS = [
    (0, "/L0000000000", "/00/0000/L0000", "/000/0000/0000/0000/L0000"),
    (1, "/L0000000001", "/00/0000/L0001", "/000/0000/0000/0000/L0001"),
    (2**31 - 2, "/L2147483646", "/21/4748/L3646", "/000/0000/0021/4748/L3646"),
    (2**31 - 1, "/L2147483647", "/000/0000/0021/4748/L3647", "/000/0000/0021/4748/L3647"),
    (2**31, "/L2147483648", "/000/0000/0021/4748/L3648", "/000/0000/0021/4748/L3648"),
    (12345678901, "/L12345678901", "/000/0000/0123/4567/L8901", "/000/0000/0123/4567/L8901"),
    (10**18, "/L1000000000000000000", "/100/0000/0000/0000/L0000", "/100/0000/0000/0000/L0000"),
]


@pytest.mark.parametrize(("ledger_id", "flat", "hierarchical", "longhierarchical"), _PATHS)
def test_ledger_paths(ledger_id: int, flat: str, hierarchical: str, longhierarchical: str) -> None:
    for manager, path in (("flat", flat), ("hierarchical", hierarchical), ("longhierarchical", longhierarchical)):
        assert ledger_path(manager, ledger_id) == path
