"""Bytes of ledger metadata: round trips, tolerance, and one error for everything malformed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError, MetadataFormatError
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerAccess, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec import HEADER, decode, encode, is_bookie_id

_OPEN = LedgerMetadata(
    ensemble_size=2, write_quorum_size=2, ack_quorum_size=1, state=LedgerState.OPEN, fragments=(Fragment(0, ("a:1", "b:2")),), password=b"s"
)
_BARE = replace(_OPEN, password=b"", stores_password=False, has_digest=False, digest_type=DigestType.CRC32)
_I64 = st.integers(-(2**63), 2**63 - 1)
_BOOKIE = st.text("abcXYZ019.-_:@[]", min_size=1, max_size=12)


@st.composite
def _metadata(draw: st.DrawFn) -> LedgerMetadata:
    e = draw(st.integers(1, 4))
    w = draw(st.integers(1, e))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**63 - 1), max_size=3)))]
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    version = draw(st.sampled_from((1, 2, 3)))
    metadata = LedgerMetadata(
        ensemble_size=e,
        write_quorum_size=w,
        ack_quorum_size=w if version == 1 else draw(st.integers(1, w)),
        state=state,
        fragments=tuple(Fragment(first, tuple(draw(st.lists(_BOOKIE, min_size=e, max_size=e)))) for first in firsts),
        last_entry_id=draw(st.integers(-1, 2**63 - 1)) if closed else -1,
        length=draw(st.integers(0, 2**63 - 1)) if closed else 0,
        format_version=version,
        digest_type=DigestType.CRC32,
        stores_password=False,
        has_digest=False,
    )
    if version == 1:
        return metadata
    return replace(
        metadata,
        digest_type=draw(st.sampled_from(DigestType)),
        stores_password=True,
        has_digest=True,
        password=draw(st.binary(max_size=20)),
        custom=draw(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=20), max_size=3)),
        ctime_ms=draw(st.none() | _I64),
        creator_token=draw(st.none() | _I64) if version == 3 else None,
    )


@given(_metadata())
def test_what_is_written_is_read_back(metadata: LedgerMetadata) -> None:
    assert decode(encode(metadata)) == metadata


def _decodes_or_refuses(data: bytes) -> None:
    try:
        metadata = decode(data)
    except MetadataFormatError:
        return
    assert decode(encode(metadata)) == metadata


@given(st.binary(max_size=200), st.sampled_from((b"", HEADER, HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n")))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes, start: bytes) -> None:
    _decodes_or_refuses(start + data)


@given(_metadata(), st.data())
def test_damaged_bytes_give_a_value_or_the_one_error(metadata: LedgerMetadata, data: st.DataObject) -> None:
    stored = bytearray(encode(metadata))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(stored) - 1))
        match data.draw(st.sampled_from(("change", "drop", "insert", "cut"))):
            case "change":
                stored[position] = data.draw(st.integers(0, 255))
            case "drop" if len(stored) > 1:
                del stored[position]
            case "insert":
                stored.insert(position, data.draw(st.integers(0, 255)))
            case "cut":
                del stored[position + 1 :]
    _decodes_or_refuses(bytes(stored))


@given(st.text('ab{}<>[]:;,"\\# \n0123x-', max_size=60))
def test_any_text_gives_a_value_or_the_one_error(text: str) -> None:
    _decodes_or_refuses(HEADER + b"2\n" + text.encode())


def _v3(body: bytes) -> bytes:
    assert len(body) < 16384
    return HEADER + b"3\n" + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body


def _body(metadata: LedgerMetadata = _OPEN) -> bytes:
    stored = encode(metadata)
    assert len(stored) < 128
    return stored[len(HEADER) + 3 :]


def test_unknown_fields_are_carried_byte_for_byte() -> None:
    unknown = bytes.fromhex("a00107aa0102ffffa08180800001")  # three fields; the tag of the last one is longer than need be
    metadata = decode(_v3(_body() + unknown))
    assert metadata.unknown_fields == unknown
    closed = encode(metadata.closed(9, 90))
    assert closed.endswith(unknown)
    assert decode(closed).unknown_fields == unknown


def _nested(number: int, known: bytes, unknown: bytes) -> bytes:
    return bytes((number << 3 | 2, len(known) + len(unknown))) + known + unknown


def test_unknown_fields_of_fragments_and_custom_entries_are_carried() -> None:
    """META-8: through closing, through a change of the ensemble, and beside fragments and entries without any."""
    unknown = bytes.fromhex("18071a0178")  # field 3 twice, with two wire types
    fragment = _nested(6, b"\x0a\x03c:3\x0a\x03d:4\x10\x05", unknown)
    entry = _nested(11, b"\x0a\x01k\x12\x01v", unknown)
    plain = _nested(11, b"\x0a\x01p\x12\x01w", b"")
    metadata = decode(_v3(_body() + fragment + entry + plain))
    assert metadata.fragments == (Fragment(0, ("a:1", "b:2")), Fragment(5, ("c:3", "d:4"), unknown))
    assert (dict(metadata.custom), metadata.custom_unknown_fields) == ({"k": b"v", "p": b"w"}, (("k", unknown),))
    again = decode(encode(metadata.closed(9, 90)))
    assert (again.fragments, again.custom_unknown_fields) == (metadata.fragments, metadata.custom_unknown_fields)
    assert encode(again).count(unknown) == 2
    assert metadata.with_ensemble(5, ("e:5", "f:6")).last_fragment == Fragment(5, ("e:5", "f:6"), unknown)
    assert metadata.with_ensemble(7, ("e:5", "f:6")).last_fragment == Fragment(7, ("e:5", "f:6"))
    for version in (1, 2):
        with pytest.raises(MetadataFormatError):
            encode(replace(metadata, format_version=version))


def test_a_known_field_of_the_wrong_type_is_an_error_inside_too() -> None:
    """META-8: it would be written twice."""
    with pytest.raises(MetadataFormatError, match="of a segment"):
        decode(_v3(_body() + _nested(6, b"\x0a\x03c:3\x0a\x03d:4\x10\x05", b"\x08\x01")))
    with pytest.raises(MetadataFormatError, match="of custom metadata"):
        decode(_v3(_body() + _nested(11, b"\x0a\x01k", b"\x10\x01")))


def test_metadata_can_be_sent_between_processes() -> None:
    """META-1: a copy is equal, and as unchangeable as the original."""
    metadata = decode(encode(replace(_OPEN, custom={"k": b"v"}, ctime_ms=7)))
    for copied in (pickle.loads(pickle.dumps(metadata)), copy.deepcopy(metadata)):
        assert copied == metadata
        with pytest.raises(TypeError):
            copied.custom["k"] = b"w"


def test_trailing_bytes_are_ignored_in_version_3() -> None:
    assert decode(encode(_OPEN) + b"rest") == _OPEN


def test_header_spellings() -> None:
    assert decode(encode(_OPEN).replace(b"\t3\n", b"\t03\n")) == _OPEN
    for wrong in (b"\t3 \n", b"\t3\r\n", b"\t4\n", b"\t0\n", b"\t\n", b"\t00000000003\n", b" 3\n"):
        with pytest.raises(MetadataFormatError):
            decode(encode(_OPEN).replace(b"\t3\n", wrong))


def test_old_ledgers_without_password_are_rewritten_without() -> None:
    body = _body(replace(_OPEN, stores_password=False, has_digest=False, password=b"", digest_type=DigestType.CRC32))
    metadata = decode(_v3(body))
    assert (metadata.stores_password, metadata.password, metadata.digest_type) == (False, b"", DigestType.CRC32)
    assert encode(metadata).endswith(body)


def test_an_empty_password_is_stored() -> None:
    stored = encode(replace(_OPEN, password=b""))
    assert bytes.fromhex("38034200") in stored
    assert decode(stored).stores_password


def test_absent_creation_time_stays_absent() -> None:
    assert decode(encode(_OPEN)).ctime_ms is None
    assert decode(encode(replace(_OPEN, ctime_ms=5))).ctime_ms == 5


def test_length_and_last_entry_count_only_when_closed() -> None:
    stored = encode(replace(_OPEN, length=77, last_entry_id=7))
    assert (decode(stored).length, decode(stored).last_entry_id) == (0, -1)
    text = _text("state: CLOSED").replace("lastEntryId: -1\n", "")
    assert decode(HEADER + b"2\n" + text.encode()).last_entry_id == 0


def _text(state: str = "state: OPEN") -> str:
    start = len(HEADER) + 2
    return encode(replace(_OPEN, format_version=2))[start:].decode().replace("state: OPEN", state)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("state: OPEN", "state: 1"),
        lambda text: text.replace("\n", " "),
        lambda text: "# a comment\n" + text,
        lambda text: text.replace('"', "'"),
        lambda text: text.replace("{", "<").replace("}", ">"),
        lambda text: text.replace("segment {", "segment: {"),
        lambda text: text + 'later: "x" nested { deeper { a: 1 } } list: [1, 2] many [{a: 1}, <>]\n',
        lambda text: text.replace("length: 0", "length: 0x0;").replace("quorumSize: 2", "quorumSize: 02,", 1),
        lambda text: text.replace('"a:1"', '"a" ":1"').replace('"b:2"', r'"\x62\0722"'),
        lambda text: text.replace("segment {", "segment [{", 1).replace("}", "}]", 1),
    ],
)
def test_version_2_text_is_read_tolerantly(change: Callable[[str], str]) -> None:
    assert decode(HEADER + b"2\n" + change(_text()).encode()) == replace(_OPEN, format_version=2)


@pytest.mark.parametrize(
    "text",
    [
        "", "quorumSize: x", "state: 9", "state: LATER", "segment: 5", "quorumSize {}", "password: 5 ", 'password: "\\q"',
        'password: "\\777"', 'password: "open', "a {" * 100, "quorumSize: 99999999999", "length: 9223372036854775808",
        "}", "a: ]", "a", "a [1 2]", "\x00",
    ],
)  # fmt: skip
def test_malformed_version_2_text(text: str) -> None:
    with pytest.raises(MetadataFormatError):
        decode(HEADER + b"2\n" + text.encode())
    with pytest.raises(MetadataFormatError):
        decode(HEADER + b"2\n" + _text().encode() + text.encode() + b"\nquorumSize: -1\n")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"1\n1\n0\n", b"1\n1\n0\n0\treadonly\n", b"1\n1\n0\n0\ta b\n", b"1\n1\n0\n0\t\xff\n",
        b"x\n1\n0\n0\ta\n", b"1\n1\n0\n0\ta\tb\n", b"1\n1\n0\nx\ta\n", b"1\n1\n0\n0\ta\n\n5\tb\n",
        b"1\n1\n0\n0\ta\n9\tCLOSED\nmore",
        b"1\n1\n0\n5\ta\n", b"2\n1\n0\n0\ta\n", b"1\n1\n0\n0\ta\n-5\tCLOSED",
    ],
)  # fmt: skip
def test_malformed_version_1(body: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode(HEADER + b"1\n" + body)


@pytest.mark.parametrize("missing", ["quorumSize", "ensembleSize", "length", "state", "firstEntryId"])
def test_missing_required_fields_are_named(missing: str) -> None:
    lines = [line for line in _text().split("\n") if not line.strip().startswith(f"{missing}:")]
    with pytest.raises(MetadataFormatError, match=missing):
        decode(HEADER + b"2\n" + "\n".join(lines).encode())


@pytest.mark.parametrize(
    "extra", [bytes.fromhex("2809"), bytes.fromhex("3809"), bytes.fromhex("0a0100"), bytes.fromhex("ff"), bytes.fromhex("320410001000")]
)
def test_malformed_version_3(extra: bytes) -> None:
    """An unknown state and digest, a wrong wire type, half a tag, a segment without members."""
    with pytest.raises(MetadataFormatError):
        decode(_v3(_body() + extra))


@pytest.mark.parametrize(
    "metadata",
    [
        replace(_OPEN, format_version=4),
        replace(_OPEN, format_version=1),
        replace(_OPEN, format_version=2, unknown_fields=b"\xa0\x01\x07"),
        replace(_OPEN, fragments=()),
        replace(_OPEN, fragments=(Fragment(0, ("a b", "c")),)),
        replace(_OPEN, fragments=(Fragment(0, ("a", "c")), Fragment(2**63, ("a", "c")))),
        replace(_OPEN, ctime_ms=2**63),
        replace(_OPEN, custom={"\ud800": b""}),
        replace(_OPEN, state=LedgerState.CLOSED, last_entry_id=1, length=-1),
    ],
)
def test_what_others_could_not_read_is_not_written(metadata: LedgerMetadata) -> None:
    with pytest.raises(MetadataFormatError):
        encode(metadata)


def test_secrets_do_not_show() -> None:
    secret = replace(_OPEN, password=b"hush-hush")
    assert "hush" not in repr(decode(encode(secret)))
    with pytest.raises(MetadataFormatError) as failure:
        encode(replace(secret, format_version=1))
    assert "hush" not in str(failure.value)


def test_bookie_ids() -> None:
    for good in ("h:3181", "a", "A-b.c_d", "x@y[1]\\^", "10.0.0.1:1", ";<=>?"):
        assert is_bookie_id(good)
    for bad in ("", "readonly", "ReadOnly", "a b", "a/b", "a~", "a+b", "a%", "é", "a\n", "`"):
        assert not is_bookie_id(bad)


def test_an_entry_before_the_first_has_no_fragment() -> None:
    """META-5 has no answer for it; a caller's wrong number must not be read from the last fragment."""
    metadata = _OPEN.with_ensemble(5, ("c:3", "d:4"))
    assert [metadata.fragment_of(e).first_entry_id for e in (0, 4, 5, 99)] == [0, 0, 5, 5]
    with pytest.raises(InvalidArgumentError, match="before the first fragment"):
        metadata.fragment_of(-1)


def test_a_fragment_without_its_first_entry_is_refused_in_version_3() -> None:
    with pytest.raises(MetadataFormatError):
        decode(_v3(_body() + bytes.fromhex("32080a03633a330a0161")))


@pytest.mark.parametrize("length", [b"", b"\x80", b"\x80\x80\x80\x80\x80", b"\xff\xff\xff\xff\xff\x01"])
def test_a_version_3_length_that_does_not_end_is_refused(length: bytes) -> None:
    """A node that was written halfway, or bytes of somebody else behind our header."""
    with pytest.raises(MetadataFormatError, match="cut off or too large"):
        decode(HEADER + b"3\n" + length)


def test_a_version_3_message_that_is_cut_off_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="cut off after"):
        decode(encode(_OPEN)[:-1])


def test_a_large_message_has_a_length_of_several_bytes() -> None:
    large = replace(_OPEN, custom={"k": bytes(100_000)})
    assert decode(encode(large)) == large


@pytest.mark.parametrize("state", LedgerState)
def test_version_1_is_written_as_it_was_read(state: LedgerState) -> None:
    """A ledger of the oldest format keeps it through recovery and close (metadata.md 3.2)."""
    plain = replace(_BARE, ack_quorum_size=2, format_version=1)
    metadata = plain.closed(7, 70) if state is LedgerState.CLOSED else replace(plain, state=state)
    assert decode(encode(metadata)) == metadata


def test_an_open_version_1_ledger_may_end_without_a_line_feed() -> None:
    plain = replace(_BARE, ack_quorum_size=2, format_version=1)
    assert decode(encode(plain).removesuffix(b"\n")) == plain


def test_an_ack_quorum_of_its_own_is_not_lost_in_version_1() -> None:
    """The format has one quorum. Writing the ledger anyway would make later readers believe in more copies than there are."""
    plain = replace(_BARE, format_version=1)
    with pytest.raises(MetadataFormatError, match="ack quorum unlike"):
        encode(plain)


@pytest.mark.parametrize(
    "more",
    [
        {"stores_password": True},
        {"has_digest": True},
        {"custom": {"k": b"v"}},
        {"ctime_ms": 5},
        {"unknown_fields": b"\xa0\x01\x07"},
        {"custom_unknown_fields": (("k", b"\x18\x07"),)},
        {"fragments": (Fragment(0, ("a:1", "b:2"), b"\x18\x07"),)},
    ],
    ids=lambda more: ",".join(more),
)
def test_what_version_1_has_no_place_for_is_not_dropped_silently(more: dict[str, Any]) -> None:
    """META-8, and a ledger that lost its password could never be recovered."""
    plain = replace(_BARE, ack_quorum_size=2, format_version=1)
    with pytest.raises(MetadataFormatError, match="cannot hold a digest type, a password"):
        encode(replace(plain, **more))


def test_version_2_without_a_password_is_rewritten_without() -> None:
    """Neither a password nor a digest type may appear in a ledger that had none: other clients compare the bytes they read."""
    plain = replace(_BARE, format_version=2)
    stored = encode(plain)
    assert b"password" not in stored and b"digestType" not in stored
    assert decode(stored) == plain
    other = replace(plain, digest_type=DigestType.CRC32, has_digest=True)
    assert b"password" not in encode(other) and b"digestType: CRC32" in encode(other) and decode(encode(other)) == other


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_a_caller_names_is_used_and_never_stored(version: int) -> None:
    """META-15: it takes the place of what is not stored, also in a version that is read later; the stored bytes stay as they were."""
    plain = replace(_BARE, ack_quorum_size=2, format_version=version, creator_token=None)
    named = plain.with_access(LedgerAccess(DigestType.MAC, b"secret"))
    assert (named.digest_type, named.password) == (DigestType.MAC, b"secret") and "secret" not in repr(named) + named.access_note
    assert encode(named) == encode(plain) and decode(encode(named)) == plain
    assert decode(encode(named)).with_access(named.access) == named
    assert plain.with_access(LedgerAccess()) is plain


def test_what_is_stored_is_not_replaced_by_what_a_caller_names() -> None:
    """META-15."""
    assert _OPEN.with_access(LedgerAccess(DigestType.MAC, b"other")) is _OPEN and not _OPEN.access_note
    half = replace(_OPEN, has_digest=False, digest_type=DigestType.CRC32)
    assert half.with_access(LedgerAccess(DigestType.MAC, b"other")) == replace(half, digest_type=DigestType.MAC)
    assert "stores no digest type, and CRC32 with a password was used" in half.access_note


def test_version_2_carries_creation_time_and_custom_metadata() -> None:
    full = replace(_OPEN, format_version=2, ctime_ms=1234, custom={"k\u00e9": b'\x00"v\xff'})
    assert decode(encode(full)) == full


def test_the_token_of_a_creator_that_wrote_text_is_read() -> None:
    """Recognising one's own create must not depend on the format."""
    stored = HEADER + b"2\n" + (_text() + "cToken: -77\n").encode()
    assert decode(stored).creator_token == -77


def test_fields_that_a_later_release_put_into_a_segment_are_skipped_in_version_2() -> None:
    stored = HEADER + b"2\n" + _text().replace("firstEntryId: 0", "firstEntryId: 0\n  later: 7").encode()
    assert decode(stored).fragments == _OPEN.fragments


@pytest.mark.parametrize("state", ['state: "OPEN"', "state {}", "state: [OPEN, {}]"])
def test_a_state_that_is_no_word_is_refused_in_version_2(state: str) -> None:
    """Guessing OPEN would let a writer go on where recovery has begun."""
    with pytest.raises(MetadataFormatError, match="state in the metadata text"):
        decode(HEADER + b"2\n" + _text(state).encode())
