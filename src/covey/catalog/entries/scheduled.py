"""bsp, whose transfers are cut into slices and ordered by when forward needs them."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.scheduled.priorities import P3, ByteScheduler, Staggered, TicTac
from covey.strategy import MEAN_GRADIENT, Entry, TrafficFormula

GATES = "looks into one worker's whole forward and backward, of which a stage has a part: use bsp, sliced or allreduce"
BOTH_WAYS = TrafficFormula("2", formulas.servers)

ENTRIES: Mapping[str, Entry] = {
    "p3": Entry(
        P3, "Jayarajan et al. 2019", codecs="pushes", whole=GATES,
        use="Large last layers, and a network about as fast as the backward pass.",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS, timelines=("p3(slice=50)",),
        test="central/test_priorities.py"
        "::test_p3_lets_the_first_layer_overtake_slices_of_the_last_that_were_queued_before",
    ),
    "tictac": Entry(
        TicTac, "Hashemi et al. 2019", codecs="pushes", whole=GATES,
        use="Models whose layers do not follow one another in a chain (`order=tac`).",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS, timelines=("tictac",),
        test="central/test_priorities.py::test_tictac_orders_what_comes_back_and_not_what_leaves",
    ),
    "bytescheduler": Entry(
        ByteScheduler, "Peng et al. 2019", codecs="pushes", whole=GATES,
        use="As `p3`, with partitions and credit that `auto` tunes to the link; with sums between workers, too.",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS,
        timelines=(
            "bytescheduler(partition=400, credit=400)", "bytescheduler(partition=400, credit=400, exchange=allreduce)",
        ),
        test="central/test_priorities.py::test_bytescheduler_queues_by_layer_what_its_credit_holds_back",
    ),
    "staggered": Entry(
        Staggered, "Tsai et al. 2018", codecs="pushes", whole=GATES,
        use="Many workers whose pushes collide at one server.",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS, timelines=("staggered",),
        test="central/test_priorities.py::test_staggered_workers_do_not_push_together",
    ),
}  # fmt: skip
