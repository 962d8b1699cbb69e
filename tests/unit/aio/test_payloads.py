"""Payloads of the asyncio client are let go of as soon as nobody sends them any more: after the outcome, and after a cancellation."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest

from bk_core import aio
from bk_core.protocol.limits import Limits
from tests.unit.aio.loops import eventually, run, stalled
from tests.unit.aio.test_aio import KINDS, open_writer


class Mark:
    """Something that lives as long as its payload."""


class Payload(bytes):
    """A payload whose end can be seen."""

    mark: Mark


def marked(data: bytes) -> tuple[Payload, ref[Mark]]:
    payload = Payload(data)
    payload.mark = Mark()
    return payload, ref(payload.mark)


def is_gone(known: ref[Mark]) -> bool:
    gc.collect()
    return known() is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_keeps_no_payload_after_its_outcome(uri: str, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(uri) as client:
            writer = await open_writer(client, kind)
            payload, known = marked(b"x")
            acknowledged = await writer.append_future(payload)
            del payload
            assert not is_gone(known)
            place = await acknowledged
            await eventually(lambda: is_gone(known))
            assert acknowledged.done() and acknowledged.result() == place == await acknowledged
            await writer.close()

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_an_append_that_was_cancelled_in_line_keeps_no_payload(uri: str, kind: str) -> None:
    """Others stand before it, and wait on."""

    async def main() -> None:
        async with aio.connect(uri, limits=Limits(pending_bytes_max=10)) as client:
            writer = await open_writer(client, kind, **({} if kind == "ledger" else {"outstanding_bytes_max": 10}))
            go_on = stalled(client)
            filling = await writer.append_future(b"0123456789")
            head = asyncio.create_task(writer.append(b"head"))
            await asyncio.sleep(0)
            payload, known = marked(b"struck")
            struck = asyncio.create_task(writer.append(payload))
            del payload
            for _ in range(3):
                await asyncio.sleep(0)
            assert not is_gone(known)
            struck.cancel()
            await asyncio.wait([struck])
            del struck
            assert is_gone(known) and not go_on.is_set() and not head.done()
            go_on.set()
            await asyncio.gather(filling, head)
            await writer.close()

    run(main)
