"""Workers hold the same model, and step together on the sum of their gradients."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.replicated.allreduce import Allreduce
from covey.central.replicated.firecaffe import FireCaffe
from covey.central.replicated.gradient_coding import Coded, Current, GradientCoding
from covey.central.replicated.halp import Halp
from covey.central.sliced.slice_owners import BigDl, CaffeOnSpark, Sliced
from covey.strategy import FOR_STUDY, MEAN_GRADIENT, Entry, TrafficFormula

OWN_WIRE = "has its own wire; sliced is it with any codec"
OWNERS = TrafficFormula("2 (n-1)/n", formulas.owners)

ENTRIES: Mapping[str, Entry] = {
    "allreduce": Entry(
        Allreduce, "Patarasu & Yuan 2009; Li et al. 2020 (PyTorch DDP)", codecs="exchanges", measures=True,
        use="Equal machines, without servers: what most people use.",
        details="`pattern` is how gradients are summed: `ring`, `binomial` tree, `star`, `chain`, recursive "
        "`doubling`, `halving` (a ring's bytes in 2 log2 n rounds), `scatter`, `butterfly`, `bruck` (the fewest "
        "rounds for any n), or `hierarchical`: first among `local` workers of one machine (`local=0`: of one host), "
        "then between machines. With `switch` a role in the network adds up what workers send, with `scatter`'s bits "
        "and half of a ring's bytes; `window` is its memory, which bounds what is under way. `auto` measures the "
        "link and takes the fastest; the result's notes say which. Where all run on one host, or with `native=true`, "
        "the engine's own sum comes first, except with `switch`. With `bucket=4MB` gradients leave in buckets of "
        "about that size while backward still runs; `auto` chooses their number. The result is bit-identical for "
        "every size.",
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula("2 (n-1)/n", formulas.every_step),
        timelines=("allreduce", "allreduce(pattern=halving)", "allreduce(pattern=hierarchical)"),
        on_loss="continue", ranges=True,
        fault_traits=frozenset({"same bits"}),
        test="central/test_allreduce.py::test_every_worker_holds_the_whole_optimizer_and_the_same_bits",
    ),
    "sliced": Entry(
        Sliced, "Dai et al. 2019; Feng et al. 2016", codecs="pushes",
        use="As `allreduce`, with an nth of the optimizer's memory on each worker.",
        mathematics=MEAN_GRADIENT,
        traffic=OWNERS, timelines=("sliced",),
        on_loss="continue", ranges=True,
        test="central/test_slice_owners.py::test_an_owner_alone_holds_the_optimizer_state_of_its_slice",
    ),
    "bigdl": Entry(
        BigDl, "Dai et al. 2019", plain=OWN_WIRE,
        use="As `sliced`, at half the bytes, and with `drop` without waiting for stragglers.",
        details="`drop=0.05` sets a time limit that 5 % of the parts of batches miss; they do not count. The "
        "limit is measured after `warmup + window` steps, and again every `window` steps. A step that lacks more than "
        "`most` of its parts (twice `drop`) makes no update.",
        traffic=TrafficFormula("(n-1)/n", formulas.halved_owners), timelines=("bigdl",),
        on_loss="continue", ranges=True,
        fault_traits=frozenset({"compressed models"}),
        test="central/test_slice_owners.py::test_bigdl_cuts_toward_zero_on_the_wire",
    ),
    "caffeonspark": Entry(
        CaffeOnSpark, "Feng et al. 2016", plain=OWN_WIRE,
        use="The system of the surveys; otherwise use `sliced`.",
        mathematics=MEAN_GRADIENT,
        traffic=OWNERS, timelines=("caffeonspark",),
        on_loss="continue", ranges=True,
        test="central/test_slice_owners.py::test_caffeonspark_has_no_server_and_sends_two_slices_to_everybody",
    ),
    "firecaffe": Entry(
        FireCaffe, "Iandola et al. 2015",
        plain="adds up on the way to its root, and nobody but the root could decode; use allreduce(pattern=binomial)",
        use="Many workers and one server, whose link `bsp` would fill.",
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula("2", formulas.tree), timelines=("firecaffe",),
        test="central/test_firecaffe.py::test_a_step_takes_2_log2_transfers_one_after_the_other",
    ),
    "gradient_coding": Entry(
        GradientCoding, "Tandon et al. 2017",
        plain="adds and subtracts what comes until only the mean is left, which needs exact numbers",
        use="Up to s stragglers, without staleness and without lost samples, for s + 1 times the compute.",
        details="`scheme=blocks` lets as few workers as possible share parts, `cyclic` all of them, `fractional` "
        "groups of `stragglers + 1`, which must divide the workers. The rounding that decoding adds is known before "
        "the run; more than 1e-5 in float32 is refused.",
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula(
            "2; what comes late is left out", formulas.counted, (Coded, Current), beside=0
        ),
        timelines=("gradient_coding",),
        unadvised=FOR_STUDY,
        test="central/test_gradient_coding.py::test_whoever_is_late_the_weights_are_those_of_bsp",
    ),
    "halp": Entry(
        Halp, "De Sa et al. 2018", plain="subtracts gradients that are nearly equal, which needs exact numbers",
        use="Convex problems that are to be solved exactly, with weights of few bits.",
        details="Weights are a centre of full precision plus an offset of `bits` bits. Every `period` steps the centre "
        "moves to the model, and all workers compute the gradient of all their samples there; its norm over `mu` is "
        "how far the offset reaches. A step takes two gradients of its batch. torch computes in the task's "
        "precision: only the values of the weights are those of few bits.",
        traffic=TrafficFormula("2 (n-1)/n (1 + 1/period)", formulas.centred), timelines=("halp(period=2)",),
        unadvised=FOR_STUDY,
        test="central/test_halp.py::test_8_bits_reach_the_optimum_to_1e_10_where_a_fixed_scale_does_not",
    ),
}  # fmt: skip
