"""Options: parsing, mistakes, secrets, and the table in README.md."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bk_spark
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.entry.layout import body_overhead
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX
from bk_spark.options import scopes
from bk_spark.options.grammar import ENTRY_BYTES_MAX, Offsets, Place, parse_duration, parse_offsets, parse_times, parse_when
from bk_spark.options.help import ELSEWHERE
from bk_spark.options.readme import options_table, with_table
from bk_spark.options.scopes import Scope, out_of_place
from bk_spark.options.table import OPTIONS, Options, parse_options, refuse_others

URI = {"bookkeeper.metadataserviceuri": "zk://h/ledgers"}


def test_keys_arrive_lower_cased_and_aliases_count() -> None:
    options = parse_options({"metadataserviceuri": "zk://h/ledgers", "topic": "t", "maxbytespertrigger": "2m", "maxentriespertrigger": "5"})
    assert (options.log, options.max_bytes_per_trigger, options.max_rows_per_trigger) == ("t", 2 << 20, 5)
    assert parse_options({**URI, "assign": "7,9-12", "checkpointlocation": "x"}).ledgers == ((7, 7), (9, 12))


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"subscribe": "b, a"}, "logs", ("a", "b")),
        ({"topicsPattern": "fl.*"}, "log_pattern", "fl.*"),
        ({"path": "t"}, "log", "t"),
        ({"maxOffsetsPerTrigger": "9"}, "max_rows_per_trigger", 9),
        ({"maxRecordsPerTrigger": "9"}, "max_rows_per_trigger", 9),
        ({"maxEventsPerTrigger": "9"}, "max_rows_per_trigger", 9),
        ({"minRowsPerTrigger": "9"}, "min_rows_per_trigger", 9),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "2h"}, "max_trigger_delay_ms", 7_200_000),
        ({"startingTime": "5"}, "starting_timestamp", 5),
        ({"endingTime": "1970-01-01T00:00:01Z"}, "ending_timestamp", 1000),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "LATEST"}, "starting_offsets_by_timestamp_strategy", "latest"),
        ({"endingOffsets": "earliest"}, "ending_offsets", Offsets(Place(word="earliest"))),
        ({"predefinedSubscription": "me"}, "reader_name", "me"),
        ({"openLedgers": "LAC"}, "open_ledgers", "lac"),
    ],
)
def test_every_name_sets_its_field(given: dict[str, str], field: str, value: Any) -> None:
    assert getattr(parse_options({**URI, **{key.lower(): text for key, text in given.items()}}), field) == value


def test_spellings_are_unique() -> None:
    spellings = [spelling.lower() for option in OPTIONS for spelling in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings))
    assert not {name.lower() for name in ELSEWHERE} & set(spellings)
    assert set(ELSEWHERE.values()) <= {option.name for option in OPTIONS}


def test_both_names_of_an_option_are_an_error() -> None:
    for option in OPTIONS:
        for alias in option.aliases:
            with pytest.raises(InvalidArgumentError, match="given twice"):
                values = sample(option.name)
                parse_options(
                    {**URI, option.name.lower(): values, alias.lower(): values} if option.field != "uri" else {**URI, alias: "zk://h/l"}
                )


def sample(name: str) -> str:
    """A value that the option takes."""
    by_name = {"ledgers": "1", "startingTimestamp": "0", "endingTimestamp": "0", "logPattern": "a", "exactlyOnce": "true"}
    option = next(option for option in OPTIONS if option.name == name)
    for text in (by_name.get(name), "1", "true", "1m", "a", str(option.default)):
        try:
            if text is not None:
                option.parse(text)
                return text
        except ValueError:
            continue
    raise AssertionError(name)


def test_the_largest_entry_size_fits_a_frame_with_the_longest_digest() -> None:
    most = parse_options({**URI, "entrySize": str(ENTRY_BYTES_MAX)}).entry_size
    overhead = ADD_FRAME_PREFIX_BYTES + max(body_overhead(digest) for digest in DigestType)
    assert FRAME_BYTES_MAX - 1024 <= most <= FRAME_BYTES_MAX - overhead


def test_uri_from_the_environment() -> None:
    assert parse_options({"log": "t"}, {bk_spark.options.table.URI_ENVIRONMENT: "zk://e/l"}).uri == "zk://e/l"
    with pytest.raises(InvalidArgumentError, match="WITH"):
        parse_options({}, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxrowspertriger": "5"}, "did you mean maxRowsPerTrigger"),
        ({"startingoffset": "latest"}, "did you mean startingOffsets"),
        ({"pulsar.target-num-splits": "5"}, "done by minPartitions"),
        ({"kafka.bootstrap.servers": "h:1"}, "done by bookkeeper.metadataServiceUri"),
        ({"topic": "a", "log": "b"}, "given twice"),
        ({"log": "a", "ledgers": "1"}, "log and ledgers exclude"),
        ({"logs": "a", "logpattern": "b"}, "logs and logPattern exclude"),
        ({"logs": "a,,b"}, "logs"),
        ({"logs": "a,a"}, "logs"),
        ({"logpattern": "("}, "regular expression"),
        ({"subscribe": "a", "topic": "b"}, "options topic and subscribe exclude each other"),
        ({"startingoffsets": "x", "log": "a"}, "option startingOffsets: "),
        ({"maxoffsetspertrigger": "x"}, "option maxOffsetsPerTrigger: expected a whole number"),
        ({"topic": "a", "path": "b"}, "option log is given twice: as topic and as path, which are names of one option"),
        ({"ledgers": "9-7"}, "ledgers"),
        ({"ledgers": "7-"}, "ledgers"),
        ({"entrysize": "12q"}, "entrySize"),
        ({"entrysize": "5m"}, "entrySize: expected at most 5241856 bytes, .*: bookies take no larger entry, not '5m'"),
        ({"failondataloss": "maybe"}, "failOnDataLoss"),
        ({"startingoffsets": "newest"}, "startingOffsets"),
        ({"startingtimestamp": "yesterday"}, "startingTimestamp"),
        ({"openledgers": "fence"}, "openLedgers"),
        ({"entryformat": "raw", "compression": "zstd"}, "option compression does nothing with entryFormat=raw"),
        ({"maxtriggerdelay": "5m"}, "does nothing without minOffsetsPerTrigger"),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, "minOffsetsPerTrigger 9 is more than maxOffsetsPerTrigger 8"),
    ],
)
def test_mistakes_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_options({**URI, **given})


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("latest", Offsets(Place(word="latest"))),
        ('{"seq":3}', Offsets(Place(seq=3))),
        ('{"seq":3,"entry":4,"row":5,"logId":"x","rows":9,"bytes":9}', Offsets(Place(seq=3, entry=4, row=5, log_id="x"))),
        ('{"ledgerId":7,"entryId":1}', Offsets(Place(ledger_id=7, entry=1))),
        ('{"b":-1,"a":-2}', Offsets(by_log=(("a", Place(word="earliest")), ("b", Place(word="latest"))))),
        ('{"a":"earliest","b":{"seq":1}}', Offsets(by_log=(("a", Place(word="earliest")), ("b", Place(seq=1))))),
    ],
)
def test_offsets_are_parsed(text: str, offsets: Offsets) -> None:
    assert parse_offsets(text) == offsets
    assert offsets.place("a") == (offsets.everywhere or dict(offsets.by_log)["a"])


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "3",
        '{"seq":"3"}',
        '{"seq":1,"entry":-1}',
        '{"seq":1,"offset":2}',
        '{"a":-3}',
        '{"a":{"seq":1},"b":7}',
        '{"ledgerId":7}',
        '{"seq":true}',
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_offsets(text)


def test_times_and_durations() -> None:
    assert parse_when("1763640000000") == 1763640000000
    assert parse_when("2026-11-20T12:00:00Z") == parse_when("2026-11-20T13:00:00+01:00") == parse_when("2026-11-20 12:00") == 1795176000000
    assert parse_times('{"b":5,"a":"1970-01-01"}') == (("a", 0), ("b", 5))
    assert [parse_duration(t) for t in ("15m", "30s", "500ms", "2 h", "7d", "250")] == [900_000, 30_000, 500, 7_200_000, 604_800_000, 250]
    for parse, bad in ((parse_when, "noon"), (parse_times, "{}"), (parse_times, '{"a":-1}'), (parse_duration, "1w"), (parse_duration, "")):
        with pytest.raises(ValueError, match="expected"):
            parse(bad)


def test_the_password_is_never_shown() -> None:
    options = parse_options({**URI, "log": "a", "password": "hunter2"})
    assert options.password == b"hunter2" and "hunter2" not in repr(options)


def test_every_field_has_an_option_with_the_same_default() -> None:
    derived = {"uri", "given", "spelled"}
    defaults = {f.name: f.default for f in fields(Options) if f.name not in derived}
    assert {o.field: o.default for o in OPTIONS if o.field not in derived} == defaults


def test_the_readme_has_the_current_table() -> None:
    readme = (Path(bk_spark.__file__).parent / "README.md").read_text()
    assert options_table(OPTIONS) in readme, "run: python -m bk_spark.options.readme"
    assert with_table(readme, OPTIONS) == readme
    assert with_table(readme, OPTIONS[:1]).count("\n") == readme.count("\n") - len(OPTIONS) + 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"startingOffsets": '{"flights":{"0":5}}'},
            r'a log has no partitions: Kafka\'s .* segment \(\{"flights":\{"seq":3\}\}\) or a time',
        ),
        ({"endingOffsets": '{"flights":{"0":-1,"1":7}}'}, "a log has no partitions"),
        (
            {"startingOffsetsByTimestamp": '{"flights":{"0":1000}}'},
            "a log has no partitions, as Kafka's topics have: name one time for each",
        ),
        ({"log": "flights*"}, r"option log: .* for several logs: logPattern .*, not 'flights\*'"),
        ({"subscribe": "ships,flights.*"}, "option subscribe: .*: logPattern, not"),
        ({"topic": "flights,ships"}, "for several logs: .* logs like flights,ships"),
    ],
)
def test_what_other_sources_take_is_told_with_what_there_is_here(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_options({"metadataServiceUri": "zk://h/ledgers", **given})


BATCH, STREAM = "batch and streaming reads of rows", r"streaming reads \(readStream\)"


@pytest.mark.parametrize(
    ("given", "takes", "message"),
    [
        (
            {"startingOffsets": "latest"},
            set(),
            f"option startingOffsets does nothing in metadata=logs: it belongs to {BATCH} and metadata=entries$",
        ),
        ({"endingOffsets": "latest"}, set(), "it belongs to batch reads of rows and metadata=entries$"),
        ({"maxRowsPerTrigger": "5"}, set(), f"it belongs to {STREAM}$"),
        ({"entrySize": "5k"}, set(), "it belongs to writes$"),
        ({"txnAppId": "a", "txnVersion": "1"}, set(), "options txnAppId, txnVersion do nothing in .*: they belong to batch writes$"),
        ({"failOnDataLoss": "true"}, set(), rf"it belongs to {BATCH}, metadata=entries and streaming writes \(writeStream\)$"),
        ({"log": "a"}, set(), f"it belongs to {BATCH}, metadata=.*logs.* and writes$"),
        (
            {"readerName": "a", "entrySize": "5k", "minPartitions": "2"},
            {"min_partitions"},
            f"belong: entrySize to writes, readerName to {STREAM}",
        ),
    ],
)
def test_an_option_that_does_nothing_is_told_where_it_belongs(given: dict[str, str], takes: set[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        refuse_others(parse_options({"metadataServiceUri": "zk://h/ledgers", **given}), Scope("metadata=logs", frozenset({"uri"} | takes)))


@pytest.mark.parametrize(
    ("given", "scope", "message"),
    [
        ({"endingOffsets": "latest"}, scopes.STREAM_READ, "endingOffsets does nothing in a stream: .*; a stream has no end"),
        ({"maxOffsetsPerTrigger": "5"}, scopes.BATCH_READ, "option maxOffsetsPerTrigger does nothing in a batch read"),
        ({"subscribe": "a"}, scopes.BATCH_WRITE, "option subscribe does nothing in a batch write"),
        ({"txnAppId": "a"}, scopes.STREAM_WRITE, "option txnAppId does nothing in the sink of a stream: .* batch writes; with the"),
        ({"txnVersion": "1"}, scopes.BATCH_WRITE, "options txnAppId and txnVersion belong together"),
        ({"ledgers": "7"}, scopes.STREAM_READ, "option ledgers does nothing in a stream: .*; log, logs or logPattern names what"),
        ({"metadata": "logs"}, scopes.STREAM_READ, r"belongs to batch reads \(spark.read\); log, logs or logPattern names what"),
        ({"pushdown": "true"}, scopes.STREAM_READ, r"belongs to batch reads \(spark.read\); Spark applies the filters"),
        ({"checkpointLocation": "/c"}, scopes.STREAM_READ, r"checkpointLocation does nothing in a stream: .* writes \(writeStream\)$"),
        ({"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "5"}, scopes.BATCH_READ, f"belong to {STREAM}; endingOffsets or [^;]*$"),
        ({"readerName": "a"}, scopes.BATCH_READ, f"belongs to {STREAM}; startingOffsets says where"),
        ({"queryName": "a"}, scopes.BATCH_READ, r"option queryName does nothing in a batch read of rows: it belongs to streaming writes"),
        ({"checkpointLocation": "/c"}, scopes.BATCH_WRITE, "option checkpointLocation does nothing in a batch write: .*; txnAppId and"),
        ({"failOnDifferentReplay": "true"}, scopes.BATCH_WRITE, r"streaming writes \(writeStream\); txnAppId and txnVersion make"),
        ({"logs": "a,b"}, scopes.BATCH_WRITE, r'option logs does nothing in a batch write: .*; a write takes \.option\("log", "name"\)'),
        (
            {"txnAppId": "a", "txnVersion": "1"},
            scopes.STREAM_WRITE,
            "do nothing in the sink of a stream: .* batch writes; with the",
        ),
    ],
)
def test_an_option_out_of_place_is_told_with_what_does_its_work(given: dict[str, str], scope: Scope, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        refuse_others(parse_options({"metadataServiceUri": "zk://h/ledgers", **given}), scope)


def test_sparks_own_options_pass_where_spark_gives_them() -> None:
    refuse_others(parse_options({**URI, "log": "a", "checkpointlocation": "/c", "queryname": "q", "outputmode": "x"}), scopes.STREAM_WRITE)


def test_every_option_belongs_somewhere() -> None:
    """So that the message about one that does nothing always has a place to name."""
    for option in OPTIONS:
        home = out_of_place({option.name: option.field}, Scope("x", frozenset()))
        assert "reads" in home or "writes" in home or "metadata=" in home, option.name
