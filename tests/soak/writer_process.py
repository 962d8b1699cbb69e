"""A writer in a process of its own, to be killed with SIGKILL: ``python -m tests.soak.writer_process JSON``.

It writes ledgers until it is killed. Every acknowledgement is in the history's file, by one unbuffered write, before anything else happens.
"""

from __future__ import annotations

import json
import random
import sys
import threading

from tests.soak.cluster import SETTINGS, connect_through
from tests.soak.history import Recorder
from tests.soak.workload import Author, Board


def main(options: dict[str, object]) -> None:
    ports, seed = options["ports"], options["seed"]
    assert isinstance(ports, dict) and isinstance(seed, int)
    recorder = Recorder(str(options["path"]), f"{options['name']}:")
    with connect_through(str(options["uri"]), ports, str(options["protocol"]), SETTINGS["child"]) as client:
        author = Author(str(options["name"]), client, recorder, random.Random(seed), threading.Event())
        author.board = Board()
        author.run()
        if author.crash is not None:
            raise author.crash


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
