"""Figures: one look for all papers, drawn without a global state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

# Okabe and Ito's palette: told apart by colour-blind readers and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
}


@dataclass
class Figure:
    """A named figure; the caption is its text for those who cannot see it."""

    name: str
    caption: str
    figure: "MatplotlibFigure"


def hide_ticks(panels: Any) -> None:
    """Leaves an array of axes without ticks and grid, as pictures are shown."""
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 6.0, height: float = 3.6, **subplots: Any
) -> tuple["MatplotlibFigure", Any]:
    """A figure with its axes, like `pyplot.subplots` but registered nowhere.

    Returns:
        The figure, and one axes object or an array of them.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as MatplotlibFigure

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=PALETTE)}):
        figure = MatplotlibFigure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, **subplots)
    return figure, axes
