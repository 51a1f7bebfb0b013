"""Workers step a copy of the parameters, send its changes, and read when the copy is too old."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.cached.bosen import Bosen
from covey.central.cached.cache import ParameterCopy
from covey.central.cached.petuum import Essp, Petuum
from covey.central.cached.rows import Renewed
from covey.central.cached.value_bound import Vap, Visible
from covey.strategy import FOR_STUDY, Entry, TrafficFormula

COPIES = TrafficFormula("1, and 1 for each copy that is renewed", formulas.changes_up, (ParameterCopy,))

ENTRIES: Mapping[str, Entry] = {
    "petuum": Entry(
        Petuum, "Ho et al. 2013; Xing et al. 2015", codecs="pushes", placed=True,
        use="As `ssp`, on a network where a read each step costs too much.",
        traffic=COPIES, timelines=("petuum(bound=1)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"optimizers of their own"}),
        test="central/test_rules_at_work.py::test_petuum_reads_only_when_its_copy_is_too_old",
    ),
    "essp": Entry(
        Essp, "Dai et al. 2015", codecs="pushes", placed=True,
        use="As `petuum`, where fresher copies are worth their bytes.",
        traffic=COPIES, timelines=("essp(bound=1)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"optimizers of their own"}),
        test="central/test_rules_at_work.py::test_essp_asks_once_and_is_then_told",
    ),
    "bosen": Entry(
        Bosen, "Wei et al. 2015", placed=True,
        plain="compresses already: rows of changes wait until its rate leaves room for them; petuum is it without rows",
        use="Links that cannot carry every change.",
        details="See [communication scheduling](scheduling.md#magnitude-priorities-bösen).",
        traffic=TrafficFormula(
            "1, or what `rate` carries, and the rows that changed", formulas.rows, (ParameterCopy,), (Renewed,)
        ),
        timelines=("bosen(bound=1, row=50)",),
        test="central/test_bosen.py::test_the_row_goes_first_that_has_changed_most_for_what_it_is",
    ),
    "vap": Entry(
        Vap, "Wei et al. 2013; Dai et al. 2015", codecs="exchanges",
        use="A proven bound on how far copies differ.",
        details="`strong` also delays changes that only some workers have seen. A change larger than the bound passes "
        "alone. With `decay=true` the bound of a worker's t-th change is `bound / sqrt(t)`, for which convergence is "
        "proven.",
        traffic=TrafficFormula(
            "n: one's own change up, the others' down", formulas.changes_up, (Visible,), beside=0
        ),
        timelines=("vap(bound=0.01)",),
        unadvised=FOR_STUDY,
        test="central/test_value_bound.py::test_weak_lets_two_workers_differ_by_what_all_others_may_have_pending",
    ),
}  # fmt: skip
