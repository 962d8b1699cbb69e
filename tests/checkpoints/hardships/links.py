"""Links of the driver to bookies and to ZooKeeper that are thin, far, silent or cut in the middle of a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

from tests.checkpoints.hardships.ground import BATCHES, STATES, Ground, Outcome, Query, ground, play_all
from tests.network.proxy import IN, OUT, Link, Proxy

PATIENCE_S = 15.0
THIN_BYTES_PER_S, FAR_S = 100_000, 0.2
GOES_ON_S = 60.0  # four times the patience
PAUSE_S = 0.3

Harm = Callable[[Proxy, Link], None]


def thin(proxy: Proxy, link: Link) -> None:
    proxy.throttle(link, THIN_BYTES_PER_S)
    proxy.delay(link, FAR_S)


def silent(proxy: Proxy, link: Link) -> None:
    proxy.silence(link, IN, OUT)


def deaf(proxy: Proxy, link: Link) -> None:
    """Let out all that the driver says, and nothing back in."""
    proxy.silence(link, IN)


def gone(proxy: Proxy, link: Link) -> None:
    proxy.cut(link, refuse=True)


def harmed(ground: Ground, harm: Harm, links: Sequence[Link], query: Query) -> str:
    """Until the query ends or is through."""
    for link in links:
        harm(ground.proxy, link)
    what = query.under_hardship(GOES_ON_S) + query.opened_anew()
    for link in links:
        ground.proxy.heal(link)
    return what


def flickering(ground: Ground, links: Sequence[Link], query: Query) -> str:
    """Connections are cut again and again, each time in the middle of something."""
    query.go_on(BATCHES)
    begun, cuts = time.monotonic(), 0
    while query.look()["active"] and not query.is_held and time.monotonic() < begun + GOES_ON_S:
        for link in links:
            ground.proxy.cut(link)
        cuts += 1
        time.sleep(PAUSE_S)
    return f"cut {cuts} times, {'ended' if not query.look()['active'] else 'was through'} in {time.monotonic() - begun:.0f} s"


def plays(ground: Ground) -> list[tuple[str, Callable[[Query], str]]]:
    bookies, keeper = ground.links, [ground.zookeeper]
    of = partial(partial, harmed, ground)
    return [
        ("bookies thin and far (0.1 MB/s, 200 ms)", of(thin, bookies)),
        ("one bookie silent", of(silent, bookies[:1])),
        ("all bookies silent", of(silent, bookies)),
        ("all bookies answer nothing", of(deaf, bookies)),
        ("all bookies refuse", of(gone, bookies)),
        ("bookies' connections cut again and again", partial(flickering, ground, bookies)),
        ("ZooKeeper thin and far (0.1 MB/s, 200 ms)", of(thin, keeper)),
        ("ZooKeeper silent", of(silent, keeper)),
        ("ZooKeeper refuses", of(gone, keeper)),
        ("all silent", of(silent, [*bookies, *keeper])),
    ]


def measure(work: Path, apache: str | None, only: str, say: Callable[[object], None]) -> list[Outcome]:
    """With one state store and the other in turn."""
    with ground(work, apache) as here:
        found = [(name, state, PATIENCE_S, do) for (name, do), state in zip(plays(here), cycle(STATES), strict=False)]
        return play_all(here, found, only, say)
