"""The words about a metadata store that gives no session."""

from __future__ import annotations

import itertools

import pytest

from bk_core.protocol.session.reach import AT_ODDS, Found, Reach, is_at_odds, is_hopeless, kind_of, told


@pytest.mark.parametrize("reaches", list(itertools.product(Reach, repeat=2)))
def test_only_what_refuses_is_unknown_or_at_odds_about_tls_everywhere_is_given_up_at_once(reaches: tuple[Reach, Reach]) -> None:
    """SES-11."""
    tls = {Reach.UNTRUSTED, Reach.OTHER_HOST, Reach.REFUSES_TLS, Reach.OTHER_TLS, Reach.ENDS_TLS, Reach.LACKS_TLS, Reach.NEEDS_TLS}
    assert tls == AT_ODDS
    hopeless = {Reach.REFUSED, Reach.UNKNOWN_HOST} | tls
    assert is_at_odds([Found("h:1", reach) for reach in reaches]) is (bool(set(reaches) & tls) and Reach.SERVES not in reaches)
    assert is_hopeless([Found("h:1", reach) for reach in reaches]) is (set(reaches) <= hopeless)
    assert not is_hopeless([])


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, Reach.SILENT),
        (b"", Reach.FOREIGN),
        (b"HTTP/1.1 400 Bad Request", Reach.FOREIGN),
        (b"\x15\x03\x03\x00\x02\x02\x50", Reach.NEEDS_TLS),
        (b"Zookeeper version: 3.9.5-1", Reach.SERVES),
        (b"srvr is not executed because it is not in the whitelist.", Reach.SERVES),
        (b"This ZooKeeper instance is not currently serving requests", Reach.NOT_SERVING),
    ],
)
def test_an_answer_tells_what_is_there(answer: bytes | None, kind: Reach) -> None:
    assert kind_of(answer) is kind


def test_each_address_is_told_with_the_time_that_was_waited() -> None:
    """SES-11."""
    found = [Found("h1:2181", Reach.REFUSED), Found("h2:2181", Reach.UNKNOWN_HOST, "Name or service not known")]
    text = told("h1:2181,h2:2181", 60.04, found)
    assert text.startswith("no connection to ZooKeeper at h1:2181,h2:2181 after 60.0 s: h1:2181 refuses connections")
    assert text.endswith("; the host of h2:2181 is unknown (Name or service not known)")
    assert len({str(Found("h:1", reach)) for reach in Reach}) == len(Reach)
