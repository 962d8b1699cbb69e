"""One connection to one bookie, without the socket: these rules tell when it is silent, which request is late, and how much is asked for at
once.

Time comes in as ``now_ns`` (SM-4); nothing here sends. ``bk_core.net.link`` drives it.
"""

from bk_core.protocol.link.flow import FIRST_WINDOW_BYTES, PIECE_BYTES_MIN, WINDOW_BYTES_MAX, EntrySizes, FlowWindow
from bk_core.protocol.link.health import CUTS_MAX, Attempts, LinkHealth, Patience
from bk_core.protocol.link.turns import Turns

__all__ = [
    "CUTS_MAX",
    "FIRST_WINDOW_BYTES",
    "PIECE_BYTES_MIN",
    "WINDOW_BYTES_MAX",
    "Attempts",
    "EntrySizes",
    "FlowWindow",
    "LinkHealth",
    "Patience",
    "Turns",
]
