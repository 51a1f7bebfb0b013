"""Servers hold the parameters; workers pull, differentiate and push."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.executors.litz import Litz
from covey.central.lbfgs.sandblaster import Sandblaster
from covey.central.lbfgs.vector_shards import Model, PortionGradient
from covey.central.server.aggressive import ABsp
from covey.central.server.delayed import BoundedDelay
from covey.central.server.downpour import Downpour
from covey.central.server.parameter_server import (
    Asynchronous,
    BackupWorkers,
    Bsp,
    DelayCompensated,
    Dssp,
    Softsync,
    Ssp,
    ValueBound,
)  # fmt: skip
from covey.central.server.speculative import SpecSync
from covey.central.server.store import Fetched
from covey.central.tiered.proteus import Proteus
from covey.strategy import FOR_STUDY, MEAN_GRADIENT, Entry, TrafficFormula

BOTH_WAYS = TrafficFormula("2", formulas.servers)

ENTRIES: Mapping[str, Entry] = {
    "bsp": Entry(
        Bsp, "Valiant 1990; Chen et al. 2016", codecs="pushes", measures=True, placed=True,
        use="Equal machines on a fast network; the reference for all others.",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS, timelines=("bsp",),
        on_loss="continue", ranges=True,
        fault_traits=frozenset({"same bits"}),
        test="central/test_parameter_server.py::test_bsp_takes_the_time_of_the_slowest_and_the_weights_of_any",
    ),
    "ssp": Entry(
        Ssp, "Ho et al. 2013; Jiang et al. 2017 (damping)", codecs="pushes", measures=True, placed=True,
        use="Workers whose speed varies from step to step.",
        details="Right after its own push a worker may be `bound + 1` ahead. It pulls every step. `ssp(bound=0)` "
        "waits exactly as `bsp` does and, with plain SGD and equal batches, ends with the same weights.",
        tries=("ssp(bound=1)",),
        traffic=BOTH_WAYS, timelines=("ssp(bound=1)",),
        on_loss="continue", ranges=True,
        test="central/test_parameter_server.py::test_ssp_reads_reach_the_bound_and_ticks_one_more",
    ),
    "bounded_delay": Entry(
        BoundedDelay, "Li et al. 2014", codecs="pushes", placed=True,
        use="A network with a long round trip, which a delay of as many steps hides.",
        details="The gradients of a step make one update on each server, in the order of steps. `delay=0` is `bsp`, "
        "to the bit. Steps on old gradients need a smaller learning rate where yours is nearly too large.",
        traffic=BOTH_WAYS, timelines=("bounded_delay",),
        test="central/test_delayed.py::test_a_fast_worker_leads_by_the_delay_and_no_more",
    ),
    "asynchronous": Entry(
        Asynchronous, "Agarwal & Duchi 2011; Lian et al. 2015", codecs="pushes", measures=True, placed=True,
        use="Machines of very different speed.",
        details="`momentum=0.9` is the total momentum: asynchrony contributes 1 - 1/n of it, and the optimizer gets "
        "the rest, which may be negative.",
        traffic=BOTH_WAYS, timelines=("asynchronous",),
        on_loss="continue", ranges=True,
        test="central/test_parameter_server.py::test_asynchronous_workers_of_equal_speed_are_stale_by_all_the_others",
    ),
    "dssp": Entry(
        Dssp, "Zhao et al. 2019", codecs="pushes", measures=True, placed=True,
        use="As `ssp`, where no single bound suits the whole run.",
        traffic=BOTH_WAYS, timelines=("dssp(low=0, extra=2)",),
        on_loss="continue", ranges=True,
        test="central/test_rules_at_work.py"
        "::test_dssp_goes_beyond_its_low_bound_where_that_saves_waiting_and_ssp_does_not",
    ),
    "quorum": Entry(
        BackupWorkers, "Chen et al. 2016; Abadi et al. 2016", codecs="pushes", measures=True, placed=True,
        use="A few stragglers, now one machine and now another.",
        details="`size` is all workers but one unless given. `count=gradients` gives out n tokens a step, as "
        "TensorFlow does: a fast worker may take the one that a slow worker leaves, and supply two; `size` may then "
        "exceed n.",
        traffic=BOTH_WAYS, timelines=("quorum(size=2)",),
        on_loss="continue", ranges=True,
        test="central/test_rules_at_work.py::test_quorum_takes_the_time_of_the_qth_fastest",
    ),
    "softsync": Entry(
        Softsync, "Zhang, Gupta et al. 2016", codecs="pushes", measures=True, placed=True,
        use="Between `bsp` and `asynchronous`: fewer updates, of less noise.",
        traffic=BOTH_WAYS, timelines=("softsync",),
        on_loss="continue", ranges=True,
        test="central/test_rules_at_work.py::test_softsync_applies_mixed_versions_together",
    ),
    "dc_asgd": Entry(
        DelayCompensated, "Zheng et al. 2017", codecs="pushes", measures=True, placed=True,
        use="As `asynchronous`, where staleness costs accuracy and servers have memory to spare.",
        details="The correction is the gradient's square times that change, so servers keep what each worker was "
        "given. `strength` is 0.04, or 2 with `adaptive=true`, unless given.",
        traffic=BOTH_WAYS, timelines=("dc_asgd",),
        on_loss="continue", ranges=True,
        test="central/test_rules_at_work.py::test_compensation_uses_what_this_worker_was_given",
    ),
    "value_bound": Entry(
        ValueBound, "Langer et al. 2020", codecs="pushes", measures=True,
        use="As `ssp`, where steps say little about how far the weights move.",
        details="The server keeps every version in use. Needs 1 server.",
        traffic=BOTH_WAYS, timelines=("value_bound(bound=0.1)",),
        test="central/test_versions.py::test_it_waits_for_what_moved_although_all_clocks_are_equal",
    ),
    "a_bsp": Entry(
        ABsp, "Wang et al. 2018", codecs="pushes",
        use="Stragglers whose partial work should count.",
        details="A batch has `chunks`; what slower workers push is weighted by its samples.",
        traffic=BOTH_WAYS, timelines=("a_bsp(chunks=2)",),
        test="central/test_aggressive.py::test_a_straggler_at_two_fifths_counts_two_fifths_and_goes_on_there",
    ),
    "specsync": Entry(
        SpecSync, "Zhang et al. 2018", codecs="pushes",
        use="As `asynchronous`, where computing a batch again costs less than its staleness.",
        details="That is when `abort_rate · n` others push within `abort_time` seconds; it is noticed between two "
        "`parts` of the batch.",
        traffic=TrafficFormula("2, and 1 for each repeated batch", formulas.changes_up, (Fetched,), beside=0),
        timelines=("specsync(parts=2, abort_time=1)",),
        unadvised=FOR_STUDY,
        test="central/test_speculative.py::test_a_slow_batch_is_aborted_and_redone_on_fresher_weights",
    ),
    "downpour": Entry(
        Downpour, "Dean et al. 2012; Li et al. 2014 (filters)", codecs="pushes",
        use="DistBelief's way: asynchronous, with fewer messages than steps.",
        details="The shards step with Adagrad, or with the task's optimizer (`server=task`). With `warm=k` the first "
        "k updates are worker 0's alone. Filters are `significance` (threshold), `kkt` (l1, slack; servers apply the "
        "penalty once for each gradient that a push holds), `random_skip` (skip) and `key_caching`.",
        traffic=TrafficFormula("1 / push + 1 / fetch", formulas.servers), timelines=("downpour(push=3, fetch=2)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"optimizers of their own"}),
        test="central/test_downpour.py::test_pushes_at_0_3_6_hold_1_3_3_gradients_and_the_weights_move_in_between",
    ),
    "proteus": Entry(
        Proteus, "Harlap et al. 2017", plain="hands the state of parameters from machine to machine, as it is",
        use="Many machines that may vanish, and a few that stay.",
        details="`--servers` says how many machines stay: those of the first workers, each with a server. With a range "
        "of workers, the others may come and go. By their number for each reliable machine, parameters are served by "
        "reliable machines (stage 1), or above `stage2` by half of the transient ones, with a backup on reliable ones "
        "every `backup` steps (stage 2); above `stage3` reliable machines do not train (stage 3). A machine that is "
        "given notice hands over what it serves. When one vanishes without, all go back to the last backup, and the "
        "batches since then are done again. With a fixed number of workers it is `bsp`.",
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula("2 (n-1)/n", formulas.server_beside_worker), timelines=("proteus",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"parameters of their own"}),
        unadvised="it pays where machines vanish, which the advice for a fixed cluster does not weigh",
        test="central/test_proteus.py::test_when_all_transient_machines_vanish_the_run_goes_back_to_the_last_backup_only",
    ),
    "litz": Entry(
        Litz, "Qiao et al. 2018", plain="moves executors, and what a codec owes would have to move along",
        use="Machines that come and go, where the outcome must not depend on that.",
        details="With a range of workers there are as many executors as its largest number, each with its share of the "
        "data. They live on the workers that are there, and an update waits for the gradients of all executors, "
        "whoever computes them. So the global batch and the weights are those of `bsp` with the largest number, to the "
        "bit, and with fewer workers a step takes longer. With a fixed number of workers it is `bsp`.",
        mathematics=MEAN_GRADIENT,
        traffic=BOTH_WAYS, timelines=("litz",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"same bits"}),
        unadvised="it pays where workers come and go, which the advice for a fixed cluster does not weigh",
        test="central/test_litz.py::test_executors_that_move_in_the_middle_of_an_epoch_change_no_bit",
    ),
    "sandblaster": Entry(
        Sandblaster, "Dean et al. 2012", plain="searches along a line, which needs exact losses and gradients",
        use="Models that train well with large batches and second-order steps.",
        details="A batch is `batch` steps of every worker, a pass over the data unless given.",
        traffic=TrafficFormula(
            "2 for each portion of a batch", formulas.counted, (Model, PortionGradient), beside=0
        ),
        timelines=("sandblaster(batch=2)",),
        unadvised=FOR_STUDY,
        test="central/test_sandblaster.py::test_the_coordinator_moves_only_scalars_and_commands",
    ),
}  # fmt: skip
