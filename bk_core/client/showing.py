"""Shows what a cluster has in a notebook within a short time, also where the cluster does not answer."""

from __future__ import annotations

from collections.abc import Callable

from bk_core.display import table
from bk_core.errors import BkError
from bk_core.threads import SafeFuture, start_aside, wait_done

SHOWN_S = 3.0
"""The seconds for which a cell of a notebook waits for the cluster. Calls of a program wait for as long as the client's settings say."""


def shown_in_time(make: Callable[[], str], name: str) -> str:
    """Return the HTML of ``make``, or a line that says why there is none. What is shown never fails.

    ``make`` runs on a thread of its own. If it takes longer than ``SHOWN_S``, that thread goes on until the client's own timeouts end it,
    and its result is dropped.
    """
    made: SafeFuture[str] = SafeFuture()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    start_aside(run, "bookkeeper-shown")
    if not wait_done(made, SHOWN_S):
        return table.html(
            name, f"The cluster did not answer within {SHOWN_S:g} s, so nothing is known of it now. Run the cell again later."
        )
    try:
        return made.result()
    except BkError as error:  # such as a log that was deleted, or a client that is closed
        return table.html(name, str(error))
