"""Settings of the Python processes that Spark keeps for its tasks and plans."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
_calls = 0
_modules = 0


def spare_collections() -> None:
    """Freeze what Python's collector has kept, as a task or a plan begins, so that it leaves alone what this process keeps until its end:
    its modules.

    pyspark's daemon collects garbage after every task and every planner call, 30 to 60 ms over all that pyspark, pandas, pyarrow and
    bk_core are made of, four times a micro-batch. The first call of a process freezes nothing, because little is imported yet; later ones
    do if something was imported since, and the daemon has just collected, so no garbage is kept. Other processes are left as they are.
    """
    global _calls, _modules
    _calls += 1
    if _calls > 1 and len(sys.modules) != _modules and _is_sparks():
        gc.freeze()
        _modules = len(sys.modules)


def _is_sparks() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
