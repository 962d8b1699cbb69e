"""The client: ``connect`` -> BookKeeper -> WriteHandle and ReadHandle; logs are in ``logs`` and ``log_reader``."""

from bk_core.client.client import BookKeeper, connect
from bk_core.client.read_handle import ReadHandle
from bk_core.client.write_handle import WriteHandle

__all__ = ["BookKeeper", "ReadHandle", "WriteHandle", "connect"]
