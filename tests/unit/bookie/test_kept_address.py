"""The file in which an embedded bookie keeps its address, by which ledgers name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.bookie.identity import kept_address
from bk_core.errors import InvalidArgumentError


def test_an_address_is_kept(tmp_path: Path) -> None:
    assert kept_address(tmp_path) is None
    (tmp_path / "address").write_text("127.0.0.1:3181\n")
    assert kept_address(tmp_path) == ("127.0.0.1", 3181)


@pytest.mark.parametrize("content", [b"", bytes(16), b"\xff\xfe:1\xff", b"host", b":3181", "host:²".encode()], ids=repr)
def test_a_damaged_one_says_what_to_write(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "address").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"does not hold host:port, the id by which .*: write it there again .`bk bookie ls`"):
        kept_address(tmp_path)
