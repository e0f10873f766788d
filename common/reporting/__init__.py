"""Claims, verdicts, tables, figures, the HTML page."""

from ritornello.common.reporting.card import Card, Check, Claim, load_card
from ritornello.common.reporting.claims import Verdict, judge
from ritornello.common.reporting.figures import Figure, hide_ticks, new_figure
from ritornello.common.reporting.results import Results

__all__ = [
    "Card",
    "Check",
    "Claim",
    "Figure",
    "Results",
    "Verdict",
    "hide_ticks",
    "judge",
    "load_card",
    "new_figure",
]
