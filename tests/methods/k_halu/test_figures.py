"""The figures of a run of few arms."""

import warnings

import pandas as pd

from ritornello.common.reporting import Results
from ritornello.experiments.k_halu.figures import figures


def test_one_arm_is_drawn_without_a_warning(tmp_path):
    row = {"part": "baselines", "arm": "lexical", "seed": 0, "language": "en", "value": 0.5}
    table = pd.DataFrame(
        [
            {**row, "metric": metric, "samples": [0.0, 1.0]}
            for metric in ("set_match", "set_match_official", "f1", "official_f1", "over", "under")
        ]
    )
    drawn = list(figures(Results(table, tmp_path)))
    assert {"all_arms", "two_readings", "over_and_under_selection"} <= {f.name for f in drawn}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in drawn:
            figure.figure.savefig(tmp_path / f"{figure.name}.png")
