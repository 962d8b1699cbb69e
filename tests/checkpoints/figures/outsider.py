"""Another user of the host, who asks the gateway for a checkpoint and reads all files that he may read. Needs nothing but Python.

A JSON object on standard input says where the gateway is, which directories to read (files written since ``since``, and all of /proc), and
which texts nobody may find. Prints what came of it as one line of JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

PART = 1 << 20
GUESSES = 200
PROC = ("cmdline", "environ", "maps", "status", "io", "mem")


def asked(task: dict[str, Any]) -> Counter[str]:
    """Return the counts by kind of question and answer: no secret, guesses, the right texts bent, and each of them in the other's place."""
    found: Counter[str] = Counter()
    refresh, access = task["secrets"]
    bent = [text for one in (refresh, access) for text in (one[:-1], one + "A", one.swapcase())]
    guesses = ["", *bent, *(secrets.token_urlsafe(32) for _ in range(GUESSES))]
    path = f"/webhdfs/v1/{task['store']}/offsets"
    operations = (
        ("GET", "LISTSTATUS"),
        ("GET", "GETFILESTATUS"),
        ("DELETE", "DELETE"),
        ("PUT", "MKDIRS"),
        ("PUT", "CREATE"),
        ("GET", "OPEN"),
    )
    for method, op in operations:
        found[f"without a secret: {_answer(task, method, f'{path}?op={op}', {})}"] += 1
        found[f"with a name only: {_answer(task, method, f'{path}?op={op}&user.name=root', {})}"] += 1
    for guess in [*guesses, refresh]:
        found[f"with a wrong secret: {_answer(task, 'GET', f'{path}?op=LISTSTATUS', {'Authorization': f'Bearer {guess}'})}"] += 1
    for guess in [*guesses, access]:
        form = f"grant_type=refresh_token&client_id=bk-spark&refresh_token={guess}"
        found[f"for a token, with a wrong secret: {_answer(task, 'POST', '/token', {}, form)}"] += 1
    return found


def _answer(task: dict[str, Any], method: str, target: str, headers: dict[str, str], body: str | None = None) -> int:
    connection = http.client.HTTPConnection(task["host"], task["port"], timeout=30)
    try:
        connection.request(method, target, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def files(task: dict[str, Any]) -> Iterator[str]:
    for directory in task["directories"]:
        for above, _, names in os.walk(directory):
            yield from (os.path.join(above, name) for name in names)
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            yield from (f"/proc/{pid}/{part}" for part in PROC)


def searched(task: dict[str, Any]) -> dict[str, Any]:
    """The files that could be read, with their bytes, those that could not, and those in which one of the texts is."""
    found: dict[str, Any] = {"files": 0, "bytes": 0, "refused": 0, "hits": []}
    texts = [one.encode() for one in task["secrets"]]
    for path in files(task):
        try:
            if not path.startswith("/proc/") and (os.lstat(path).st_mtime < task["since"] or not os.path.isfile(path)):
                continue
            size, hit = _searched(path, texts)
        except OSError as error:
            found["refused"] += isinstance(error, PermissionError)
            continue
        found["files"] += 1
        found["bytes"] += size
        found["hits"] += [path] if hit else []
    return found


def _searched(path: str, texts: list[bytes]) -> tuple[int, bool]:
    size, before = 0, b""
    with open(path, "rb", buffering=0) as source:
        while part := source.read(PART):
            size += len(part)
            if any(text in before + part for text in texts):
                return size, True
            before = part[-100:]
    return size, False


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps({"uid": os.getuid(), "answers": asked(given), **searched(given)}))
