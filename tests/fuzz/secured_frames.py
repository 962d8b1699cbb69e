"""Frames to a client that insists on TLS and on who the bookies are: what answers are bent inside of TLS, and what bytes on the wire.

A case is one of ``frames`` in which a program uses a client, with a doorway of ``doorways``. What must hold there must hold here. By TLS,
no byte of an entry and no key is ever seen on a wire, whatever the bookie says.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bk_core.protocol.entry.digests import master_key
from tests.fuzz import frames
from tests.fuzz.bent_door import BentDoor
from tests.fuzz.cases import play_cases
from tests.fuzz.doorways import Doorway, doorways
from tests.fuzz.frames import PASSWORD, PAYLOADS, Result, Unanswered, World, Wrong

SECRETS = (master_key(PASSWORD), PAYLOADS[-1][:1000], PAYLOADS[-3][:1000])


class SecuredWorld(World):
    """Bookies behind a doorway."""

    def __init__(self, directory: Path, doorway: Doorway) -> None:
        self.doorway = doorway
        super().__init__(directory, doorway, functools.partial(BentDoor, doorway=doorway))

    def require_secrecy(self) -> None:
        """Wrong if something of an entry, or a key, was seen on a wire with TLS."""
        for bent in self.bent.values():
            assert isinstance(bent, BentDoor)
            seen, bent.to_bookie = bent.to_bookie, []
            if self.doorway.tls and any(secret in data for data in seen for secret in SECRETS):
                raise Wrong(f"a secret is on the wire ({self.doorway.name})")


@contextmanager
def worlds() -> Iterator[list[SecuredWorld]]:
    """One for each doorway."""
    directory = Path(tempfile.mkdtemp(prefix="bk-fuzz-"))
    try:
        with ExitStack() as stack:
            made = []
            for number, doorway in enumerate(doorways(directory)):
                made.append(SecuredWorld(directory / f"{directory.name}-{number}", doorway))
                stack.callback(made[-1].close)
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def played(world: SecuredWorld, seed: int, case: int) -> int:
    """Play a case; one whose honest bookies were too slow is played again, so that only what repeats itself counts."""
    for attempt in range(frames.UNANSWERED_MAX):
        with suppress(*[Unanswered] if attempt + 1 < frames.UNANSWERED_MAX else []):
            try:
                return frames.play(world, seed, 2 * case)  # the even ones use a client
            finally:
                world.require_secrecy()
    raise AssertionError("not reached")


def run(
    *,
    seconds: float | None = None,
    seed: int = 0,
    first: int = 0,
    cases: int | None = None,
    crashes_max: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Cases ``first``, first + 1, ... until the time is over, or so many of them or of crashes were seen; crashes are told at once."""
    result = Result()
    with worlds() as made:
        play_cases(
            result,
            lambda case: played(made[case % len(made)], seed, case),
            seconds=seconds,
            seed=seed,
            first=first,
            cases=cases,
            crashes_max=crashes_max,
            say=say,
        )
    return result
