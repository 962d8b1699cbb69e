"""Objects that belong to the process that made them: they hold connections, threads and the right to write."""

from __future__ import annotations

from typing import NoReturn


class StaysHere:
    """A base of what is neither copied nor pickled.

    A copy would share the original's connections, and would close them when it is dropped.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, for ``copy`` and for ``pickle``."""
        what = type(self).__name__
        raise TypeError(
            f"a {what} belongs to the process that made it, and is neither copied nor pickled: send the cluster's URI, the name of the log "
            "or the id of the ledger, and the position, and connect in the process that uses them"
        )
