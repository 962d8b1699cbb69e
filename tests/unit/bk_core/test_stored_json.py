"""JSON of others: one kind of error."""

from __future__ import annotations

import pytest

from bk_core.errors import MetadataFormatError
from bk_core.metadata.racks import parse_rack_map
from bk_core.protocol.log.codec import decode
from bk_core.protocol.log.stored_json import loads

DEEP = "[" * 200_000


def test_what_is_sound_is_read() -> None:
    assert loads(b'{"a":[1,2.5,null,true]}') == loads('{"a":[1,2.5,null,true]}', unique=True) == {"a": [1, 2.5, None, True]}
    assert loads('{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 200_000, "NaN", "-Infinity", "1e999", "9" * 5000, "", "{", b"\xff\xfe\x00"], ids=range(9))
def test_everything_else_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(ValueError, match="a key twice"):
        loads('{"a":{"b":1,"b":1}}', unique=True)


def test_readers_of_the_metadata_store_say_what_is_wrong() -> None:
    for data in (DEEP.encode(), b'{"format":3,"cluster":"c","logId":' + DEEP.encode(), b'{"format":1e999}'):
        with pytest.raises(MetadataFormatError):
            decode(data)
        with pytest.raises(MetadataFormatError):
            parse_rack_map(data)
