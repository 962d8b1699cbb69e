"""Shortens the errors of the driver's calls: the message says what happened, where and what to do, so the traceback is dropped.

Spark shows a Python error with its whole traceback, causes included: 8 to 33 lines of ours before the one that the user can act on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from bk_core.errors import BkError, InternalError

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("bk_spark.errors")


def plainly(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method, so that our errors have no traceback and no cause; at level DEBUG they are logged with both. Defects keep them."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except InternalError:
            raise
        except BkError as error:
            _log.debug("%s", error, exc_info=True)
            told = error
        told.__cause__ = None
        raise told.with_traceback(None) from None

    return call
