"""The client for asyncio: the same ledgers and logs, awaited. It is a thin skin over the futures of ``bk_core.client``.

>>> async with bk_core.aio.connect(uri) as client:
...     log = await client.create_log("events", entry_format="raw", exist_ok=True)
...     async with log.writer() as writer:
...         await writer.append(b"hello")
...     async for run in log.reader().follow():
...         print(run.payloads())

Nothing here blocks the loop. An append that finds no room is awaited, and so is everything that asks the metadata store. A cancelled call
leaves no half of itself. See README.md in this folder.
"""

from __future__ import annotations

from bk_core.aio.appends import Acknowledgement
from bk_core.aio.client import BookKeeper, connect
from bk_core.aio.ledgers import ReadHandle, WriteHandle
from bk_core.aio.logs import Log, LogWriter
from bk_core.aio.reading import LogReader

__all__ = ["Acknowledgement", "BookKeeper", "Log", "LogReader", "LogWriter", "ReadHandle", "WriteHandle", "connect"]
