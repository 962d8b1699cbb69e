"""The lines that ``bk local`` prints are there to be copied."""

from __future__ import annotations

import pytest

from bk_core.cli.local import _banner
from bk_core.cli.output import URI_VARIABLE

URI = "zk://127.0.0.1:2181/ledgers?bookie_ca_file=/clusters/a%20long/path/of/a/cluster/security/ca.pem&bookie_user=bookkeeper-local"


@pytest.mark.parametrize("columns", ["40", "80"])
def test_each_line_is_one_however_narrow_the_terminal_is(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break in the middle would be copied, and the URI would be another one."""
    monkeypatch.setenv("COLUMNS", columns)
    _banner(
        URI, "embedded", [f"127.0.0.1:{port}" for port in range(3181, 3191)], "/clusters/a long/path of/a/cluster", ["http://h/metrics"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert f"  {URI}" in lines and f"  export {URI_VARIABLE}='{URI}'" in lines and f"  bk_core.connect({URI!r})" in lines
    assert "       data in /clusters/a long/path of/a/cluster" in lines
    assert f"  spark.read.format('bookkeeper').option('bookkeeper.metadataServiceUri', {URI!r})" in lines
