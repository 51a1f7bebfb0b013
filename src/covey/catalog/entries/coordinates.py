"""Linear models, a few coordinates at a time."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.coordinates.strads import PartialUpdate, ScheduledRound, Strads
from covey.strategy import Entry, TrafficFormula

ENTRIES: Mapping[str, Entry] = {
    "strads": Entry(
        Strads, "Kim et al. 2016", plain="sends a few numbers of each round, which leave nothing to compress",
        whole="schedules the variables of one linear layer, which is not cut: omit 'with mesh(...)'",
        models="one nn.Linear(d, 1), with nn.MSELoss or nn.BCEWithLogitsLoss",
        use="Linear and logistic regression, with `l1` the lasso, on standardized features.",
        details="Each round draws `candidates` with a chance in proportion to how far each last moved, plus `eps`, "
        "and takes up to `most` of them whose correlations are at most `rho`. See "
        "[linear models](models.md#linear-models).",
        traffic=TrafficFormula(
            "a few numbers of each round", formulas.scheduled, sized=(ScheduledRound, PartialUpdate)
        ),
        timelines=("strads(most=2, rho=1)",),
        unadvised="it trains linear models only",
        test="central/test_strads.py::test_correlated_features_never_move_together",
    ),
}  # fmt: skip
