"""A janitor on a host whose clock is wrong: ``python -m tests.soak.janitor_process JSON``.

It cleans up and applies retention, over and over, until it is killed. Whatever it believes the time to be, it may delete nothing that the
store's clock still keeps (JAN-1): the judge misses the entries otherwise.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace

import grpc._channel

_real_time = time.time


def wrong_clock(skew_s: float) -> None:
    """Have ``time.time`` of this process run ``skew_s`` seconds ahead of the host's clock.

    gRPC is left out: its Python counts deadlines by ``time.time`` for a core that looks at the host's clock, and on a host whose clock is
    wrong both of them are.
    """
    grpc._channel.time = SimpleNamespace(**vars(time))
    time.time = lambda: _real_time() + skew_s


def main(options: dict[str, object]) -> None:
    skew_s, logs = options["skew_s"], options["logs"]
    assert isinstance(skew_s, int | float) and isinstance(logs, list)
    wrong_clock(skew_s)  # before the product is imported
    import bk_core
    from bk_core.client.log.janitor import apply_retention, gc_log
    from bk_core.errors import BkError, MetadataUnavailableError

    never = threading.Event()

    def connected() -> bk_core.BookKeeper:
        """A client, made anew while the store is away for longer than one waits for it."""
        while True:
            try:
                return bk_core.connect(str(options["uri"]), operation_timeout_s=40.0, await_store=True)
            except MetadataUnavailableError as error:
                print(error, flush=True)

    with connected() as client:
        while True:
            for log in logs:
                try:
                    deleted = (*apply_retention(client, log), *gc_log(client, log).deleted)
                except BkError as error:  # the network is bad, and the log may not exist yet
                    print(f"{log}: {error}", flush=True)
                else:
                    print(f"{log}: deleted {deleted}", flush=True)
            never.wait(1.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
