"""The client: ``connect`` -> BookKeeper -> WriteHandle and ReadHandle; logs are in ``log``."""

from bk_core.client.client import BookKeeper, connect
from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.ledger.write_handle import WriteHandle

__all__ = ["BookKeeper", "ReadHandle", "WriteHandle", "connect"]
