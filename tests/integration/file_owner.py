"""A program that owns a file store and changes it until it is killed: ``python -m tests.integration.file_owner URI NAME ROUND``.

Each thread has a directory of its own. On standard output it says what it is about to do and what was acknowledged, one line each:
``? PATH SIZE`` (-1: the file is to go) and ``! PATH SIZE``. The bytes of a file follow from its path and size, so a reader sees
whether they are one content as a whole.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from hashlib import blake2b

import bk_core

THREADS = 4
SIZES = (0, 10, 3000, 65536, 65537, 300_000, 4_500_000)


def content(path: str, size: int) -> bytes:
    seed = blake2b(f"{path} {size}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 400_000):
        yield data[start : start + 400_000]


class Owner:
    def __init__(self, store: bk_core.FileStore, round_: str) -> None:
        self._store = store
        self._round = round_
        self._lock = threading.Lock()

    def _say(self, what: str, path: str, size: int) -> None:
        with self._lock:
            print(what, path, size, flush=True)

    def _put(self, path: str, size: int, rng: random.Random) -> None:
        self._say("?", path, size)
        data = content(path, size)
        if rng.random() < 0.3:
            with self._store.stage(parts(data)) as staged:
                self._store.put(path, staged)
        else:
            self._store.put(path, data)
        self._say("!", path, size)

    def _delete(self, path: str) -> None:
        self._say("?", path, -1)
        self._store.delete(path)
        self._say("!", path, -1)

    def work(self, who: int) -> None:
        rng = random.Random(f"{who} {self._round}")
        while True:
            path = f"/{who}/{rng.randrange(6)}"
            if rng.random() < 0.25:
                self._delete(path)
            else:
                self._put(path, rng.choice(SIZES) + rng.randrange(2), rng)


def main(uri: str, name: str, round_: str) -> None:
    with bk_core.connect(uri) as bk, bk_core.FileStore.open(bk, name) as store:
        owner = Owner(store, round_)
        working = [threading.Thread(target=owner.work, args=(who,), daemon=True) for who in range(THREADS)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
