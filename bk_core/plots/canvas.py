"""The parts that all pictures share: where they are drawn, their colours, their legends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bk_core.display.words import safe
from bk_core.errors import ArgumentTypeError, MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#332288", "#882255", "#999933")
"""Colours that people with any kind of colour blindness tell apart: seven of Okabe and Ito's, three of Tol's. There are as many as a legend
has places."""
GREY, RED, INK = "#9A9A9A", "#D55E00", "#333333"
WIDTH = 10.0
"""Inches of a picture, which is the width of a notebook."""


def colour(index: int) -> str:
    """Return the colour of the ``index``-th thing; they come again after ten."""
    return COLOURS[index % len(COLOURS)]


def literal(text: str) -> str:
    """Return text of others for a picture: matplotlib would read what stands between two dollar signs as a formula, and controls as they
    are."""
    return safe(text, kept="").replace("$", r"\$")


def axes_for(ax: Any, height: float) -> Axes:
    """Return ``ax``, or the axes of a new figure that is ``height`` inches high.

    MissingPackageError without matplotlib, and where it cannot be imported; ArgumentTypeError for an ``ax`` that is none.
    """
    try:
        import_module("matplotlib")  # its absence has this name, and not that of a part
        from matplotlib.axes import Axes

        if ax is None:
            from matplotlib import pyplot
    except ImportError as error:
        raise _without_matplotlib(error) from error
    if ax is None:
        made: Axes = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")[1]
        return made
    if not isinstance(ax, Axes):
        raise ArgumentTypeError(f"ax must be the axes of a figure of matplotlib, not of type {type(ax).__name__}")
    return ax


def _without_matplotlib(error: ImportError) -> MissingPackageError:
    """Return what to tell a user. An import that was interrupted cannot be made again in the same process, because numpy's modules are
    initialised once; so it is no sign that a package is missing."""
    if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
        message = f'pictures need matplotlib, there is none ({sys.executable}): pip install "bk-spark[notebook]" there'
    else:
        message = (
            f"pictures need matplotlib, which is there and cannot be imported ({sys.executable}): {error}. If its first import was "
            "interrupted (Ctrl-C, the stop button), restart the kernel or the program: no later import of this process can succeed"
        )
    return MissingPackageError(message, package="matplotlib")


def legend_outside(axes: Axes, handles: Sequence[Any], title: str = "") -> None:
    """Put a legend to the right of the data, so that it covers none."""
    if handles:
        axes.legend(
            handles=list(handles), title=title or None, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small"
        )


def legend_below(axes: Axes, handles: Sequence[Any], columns: int = 4) -> None:
    """Put a legend below the data and the words of the axis."""
    if handles:
        axes.legend(
            handles=list(handles), loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=min(columns, len(handles)), frameon=False,
            fontsize="small",
        )  # fmt: skip


def plain(axes: Axes) -> None:
    """Take away the frame but the axes themselves."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
