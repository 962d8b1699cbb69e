"""The command line of an embedded bookie."""

from __future__ import annotations

from bk_core.bookie import server
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions
from bk_core.protocol.bookie.admission import ConnectionLimits


def test_the_options_of_the_server_reach_the_bookie() -> None:
    given = {"--connections": 7, "--polls-per-connection": 8, "--stalled-s": 9, "--idle-s": 10, "--few": 11, "--few-share": 0.25}
    times = {"--collect-interval-s": 12, "--moved-interval-s": 13, "--tombstone-keep-s": 14, "--refill-interval-s": 15}
    needed = ["--uri", "memory://x", "--directory", "d"]
    parsed = server.parse_options([*needed, *(str(word) for pair in (given | times).items() for word in pair), "--accept-data-loss"])
    options = server.bookie_options(parsed)
    assert options.limits == ConnectionLimits(connections=7, polls_per_connection=8, stalled_s=9.0, idle_s=10.0)
    assert options.collector == CollectorOptions(12.0, 13.0, 14.0, 11, 0.25)
    assert (options.refill_interval_s, options.accept_data_loss) == (15.0, True)
    assert server.bookie_options(server.parse_options(needed)) == BookieOptions()
