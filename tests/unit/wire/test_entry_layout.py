"""Entry bodies and LAC packets beyond the golden vectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import DigestError, InvalidArgumentError
from bk_core.protocol.entry.digests import DIGESTS, digest_for, hmac_key, master_key
from bk_core.protocol.entry.layout import Entry, decode_body, decode_lac_packet, encode_body, encode_lac_packet
from bk_core.protocol.ledger.metadata import DigestType

ID = st.integers(0, 2**63 - 1)
KIND = st.sampled_from(DigestType)


@given(ID, ID, st.integers(-1, 2**63 - 1), ID, st.binary(max_size=200), KIND, st.binary(max_size=20))
def test_bodies_survive(ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes, kind: DigestType, password: bytes) -> None:
    key = hmac_key(password)
    body = encode_body(ledger_id, entry_id, lac, length, payload, kind, key)
    assert len(body) == 32 + DIGESTS[kind].length + len(payload)
    assert decode_body(bytearray(body), ledger_id, entry_id, kind, key) == Entry(ledger_id, entry_id, lac, length, payload)
    packet = encode_lac_packet(ledger_id, lac, kind, key)
    assert decode_lac_packet(packet, ledger_id, kind, key) == lac


@given(st.binary(max_size=80), KIND)
def test_arbitrary_bytes_are_an_entry_or_a_digest_error(data: bytes, kind: DigestType) -> None:
    for decode in (lambda: decode_body(data, 1, None, kind, b"k" * 20), lambda: decode_lac_packet(data, 1, kind, b"k" * 20)):
        try:
            decode()
        except DigestError:
            pass


@pytest.mark.parametrize("kind", DigestType)
def test_other_ids_are_refused_even_without_a_digest(kind: DigestType) -> None:
    body = encode_body(5, 6, 5, 10, b"x", kind, b"k")
    with pytest.raises(DigestError):
        decode_body(body, 6, 6, kind, b"k")
    with pytest.raises(DigestError):
        decode_body(body, 5, 7, kind, b"k")
    with pytest.raises(DigestError):
        decode_lac_packet(encode_lac_packet(5, 6, kind, b"k"), 4, kind, b"k")


def test_mac_depends_on_the_password() -> None:
    body = encode_body(5, 6, 5, 10, b"x", DigestType.MAC, hmac_key(b"a"))
    with pytest.raises(DigestError):
        decode_body(body, 5, 6, DigestType.MAC, hmac_key(b"b"))
    assert master_key(b"a") != hmac_key(b"a")


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "lac", "length"), [(-1, 0, -1, 0), (0, -1, -1, 0), (0, 0, -2, 0), (0, 0, -1, -1), (2**63, 0, -1, 0)]
)
def test_impossible_numbers_are_not_written(ledger_id: int, entry_id: int, lac: int, length: int) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_body(ledger_id, entry_id, lac, length, b"", DigestType.CRC32C)


def test_unknown_digest_type() -> None:
    with pytest.raises(InvalidArgumentError):
        digest_for(5)


@pytest.mark.parametrize(("ledger_id", "lac"), [(-1, 0), (0, -2), (2**63, 0), (0, 2**63)])
def test_an_impossible_explicit_lac_is_refused_before_it_is_sent(ledger_id: int, lac: int) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_lac_packet(ledger_id, lac, DigestType.CRC32C)


@pytest.mark.parametrize("kind", DigestType)
def test_a_cut_off_explicit_lac_of_a_bookie_is_not_believed(kind: DigestType) -> None:
    """A packet that lost its end, or a digest of another kind that is shorter, is no LAC at all."""
    packet = encode_lac_packet(5, 6, kind, b"k" * 20)
    with pytest.raises(DigestError, match="shorter"):
        decode_lac_packet(packet[:-1], 5, kind, b"k" * 20)
