"""Options: parsing, mistakes, secrets, and the table in README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import bk_spark.options
from bk_core.errors import InvalidArgumentError
from bk_spark.options import OPTIONS, Options, options_table, parse_options

URI = {"bookkeeper.metadataserviceuri": "zk://h/ledgers"}


def test_keys_arrive_lower_cased_and_aliases_count() -> None:
    options = parse_options({"metadataserviceuri": "zk://h/ledgers", "topic": "t", "maxbytespertrigger": "2m", "maxentriespertrigger": "5"})
    assert (options.log, options.max_bytes_per_trigger, options.max_rows_per_trigger) == ("t", 2 << 20, 5)
    assert parse_options({**URI, "ledgers": "7,9-12", "checkpointlocation": "x"}).ledgers == ((7, 7), (9, 12))


def test_uri_from_the_environment() -> None:
    assert parse_options({"log": "t"}, {bk_spark.options.URI_ENVIRONMENT: "zk://e/l"}).uri == "zk://e/l"
    with pytest.raises(InvalidArgumentError, match="WITH"):
        parse_options({}, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxrowspertriger": "5"}, "did you mean maxRowsPerTrigger"),
        ({"topic": "a", "log": "b"}, "given twice"),
        ({"log": "a", "ledgers": "1"}, "exclude"),
        ({"txnappid": "a"}, "belong together"),
        ({"ledgers": "9-7"}, "ledgers"),
        ({"ledgers": "7-"}, "ledgers"),
        ({"entrysize": "12q"}, "entrySize"),
        ({"failondataloss": "maybe"}, "failOnDataLoss"),
        ({"startingoffsets": "newest"}, "startingOffsets"),
        ({"openledgers": "fence"}, "openLedgers"),
    ],
)
def test_mistakes_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_options({**URI, **given})


def test_the_password_is_never_shown() -> None:
    options = parse_options({**URI, "log": "a", "password": "hunter2"})
    assert options.password == b"hunter2" and "hunter2" not in repr(options)


def test_every_field_has_an_option_with_the_same_default() -> None:
    defaults = {name: f.default for name, f in Options.__dataclass_fields__.items() if name != "uri"}
    assert {o.field: o.default for o in OPTIONS if o.field != "uri"} == defaults


def test_the_readme_has_the_current_table() -> None:
    readme = Path(bk_spark.options.__file__).with_name("README.md").read_text()
    assert options_table() in readme
