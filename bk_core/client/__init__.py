"""The client: ``connect`` -> BookKeeper -> WriteHandle and ReadHandle; logs are in ``bk_core.client.logs``."""

from bk_core.client.client import BookKeeper, connect
from bk_core.client.handles import ReadHandle, WriteHandle

__all__ = ["BookKeeper", "ReadHandle", "WriteHandle", "connect"]
