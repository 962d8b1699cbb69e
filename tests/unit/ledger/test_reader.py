"""The range reader: which replica is asked next, and what the error says when there is none left."""

from __future__ import annotations

from bk_core.errors import NoSuchEntryError, ReadError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, SendRead
from bk_core.protocol.entry import layout
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.reader import LacReader, RangeReader
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadLacResponse, ReadResponse, Response, Status

METADATA = LedgerMetadata(3, 3, 2, LedgerState.CLOSED, (Fragment(0, ("a", "b", "c")),), last_entry_id=9, length=10)


def body(entry_id: int, *, corrupt: bool = False) -> bytes:
    good = bytes(layout.encode_body(7, entry_id, entry_id - 1, entry_id + 1, b"%d" % entry_id, DigestType.CRC32C, b""))
    return good[:-1] + b"?" if corrupt else good


def answer(effect: Effect, entries: range, corrupt: bool = False) -> Response:
    assert isinstance(effect, SendRead)
    message = effect.message
    if isinstance(message, BatchReadRequest):
        bodies = codec_v2.join_bodies([body(e, corrupt=corrupt) for e in entries])
        return BatchReadResponse(message.request_id, Status.OK, 7, message.entry_id, bodies)
    return ReadResponse(0, Status.OK, 7, entries.start, body(entries.start, corrupt=corrupt))


def reply(reader: RangeReader, effect: Effect, response: Response | None, status: Status = Status.OK) -> list[Effect]:
    assert isinstance(effect, SendRead)
    return reader.handle(ReadReply(effect.request, effect.bookie, status, response), 0)


def reads(effects: list[Effect]) -> list[Effect]:
    return [e for e in effects if isinstance(e, SendRead)]


def test_a_corrupt_copy_is_passed_over_and_reported() -> None:
    """RD-8: the next replica is asked, and a log line says so."""
    reader = RangeReader(7, METADATA, 0, 9, start=0, batch=True)
    (ask,) = reads(reader.start())
    effects = reply(reader, ask, answer(ask, range(10), corrupt=True))
    (line,) = [e for e in effects if isinstance(e, Log)]
    assert "corrupt" in line.message and "at a" in line.message and "ledger 7" in line.message
    (second,) = reads(effects)
    assert isinstance(second, SendRead) and second.bookie == "b"
    done = reply(reader, second, answer(second, range(10)))
    (run, end) = [e for e in done if isinstance(e, Complete)]
    assert run.value.payloads() == [b"%d" % e for e in range(10)]
    assert end.token == "end"


def test_when_all_copies_are_bad_the_error_names_them() -> None:
    """RD-6: ledger, entry and each bookie with what it said."""
    reader = RangeReader(7, METADATA, 4, 4, start=0, batch=True)
    effects = reader.start()
    for _ in range(3):
        (ask,) = reads(effects)
        effects = reply(reader, ask, answer(ask, range(4, 5), corrupt=True))
    (failed,) = [e for e in effects if isinstance(e, Fail)]
    assert isinstance(failed.error, ReadError)
    for part in ("ledger 7", "entry 4", "a: corrupt", "b: corrupt", "c: corrupt"):
        assert part in str(failed.error)


def test_absence_needs_every_replica() -> None:
    """RD-6: one real error among the denials is a read error, not an absent entry."""
    for last, kind in ((Status.NO_ENTRY, NoSuchEntryError), (Status.TIMEOUT, ReadError)):
        reader = RangeReader(7, METADATA, 4, 4, start=0, batch=False)
        effects = reader.start()
        for status in (Status.NO_ENTRY, Status.NO_LEDGER, last):
            (ask,) = reads(effects)
            effects = reply(reader, ask, None, status)
        (failed,) = [e for e in effects if isinstance(e, Fail)]
        assert type(failed.error) is kind


def test_a_short_batch_is_good_for_what_it_brings() -> None:
    """RD-10: go on after the prefix."""
    reader = RangeReader(7, METADATA, 0, 9, start=0, batch=True)
    (ask,) = reads(reader.start())
    effects = reply(reader, ask, answer(ask, range(4)))
    (following,) = reads(effects)
    assert isinstance(following, SendRead) and isinstance(following.message, BatchReadRequest)
    assert (following.message.entry_id, following.message.entries_max) == (4, 6)


def test_a_bookie_without_batch_reads_is_asked_entry_by_entry() -> None:
    """wire-protocol.md 8.5: an old bookie closes the connection; nothing is held against it."""
    reader = RangeReader(7, METADATA, 0, 1, start=0, batch=True)
    (ask,) = reads(reader.start())
    (single,) = reads(reply(reader, ask, None, Status.UNAVAILABLE))
    assert reader.batch_refused
    assert isinstance(single, SendRead) and not isinstance(single.message, BatchReadRequest) and single.bookie == "a"
    effects = reply(reader, single, answer(single, range(1)))
    (second,) = reads(effects)
    assert [e.token for e in reply(reader, second, answer(second, range(1, 2))) if isinstance(e, Complete)][-1] == "end"


def test_chunks_stay_inside_a_fragment() -> None:
    """RD-10, META-5: the second fragment's bookies are asked for its entries."""
    metadata = LedgerMetadata(1, 1, 1, LedgerState.CLOSED, (Fragment(0, ("a",)), Fragment(6, ("b",))), last_entry_id=9)
    first, second = reads(RangeReader(7, metadata, 0, 9, start=0, batch=True).start())
    assert isinstance(first, SendRead) and isinstance(second, SendRead)
    assert (first.bookie, second.bookie) == ("a", "b")
    assert isinstance(first.message, BatchReadRequest) and first.message.entries_max == 6


def test_the_lac_is_the_highest_heard_and_at_least_the_entry_before_the_last_fragment() -> None:
    """LC-1, D5, scenario 43; a bookie's EIO beside an explicit LAC still tells it (wire-protocol.md 8.8)."""
    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d"))))
    reader = LacReader(7, metadata, "t")
    reader.start()
    assert reader.handle(ReadReply(0, "a", Status.NO_ENTRY), 0) == []
    assert reader.handle(ReadReply(1, "b", Status.NO_LEDGER), 0) == []
    assert reader.handle(ReadReply(2, "d", Status.TIMEOUT), 0) == [Complete("t", 4)]
    again = LacReader(7, metadata, "t")
    again.start()
    packet = layout.encode_lac_packet(7, 8, DigestType.CRC32C, b"")
    again.handle(ReadReply(0, "a", Status.IO_ERROR, ReadLacResponse(0, Status.IO_ERROR, 7, packet, None)), 0)
    again.handle(ReadReply(1, "b", Status.NO_ENTRY), 0)
    assert again.handle(ReadReply(2, "d", Status.NO_ENTRY), 0) == [Complete("t", 8)]
