"""Workers train alone for a while; then their models are averaged, or drawn to a centre."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.decentral.averaging.crossbow import Crossbow
from covey.decentral.averaging.local_sgd import LocalSgd
from covey.decentral.averaging.mpca import Gathered, Meaned, Mpca
from covey.decentral.averaging.outer import Bmuf, Diloco
from covey.decentral.averaging.sparknet import SparkNet
from covey.decentral.elastic.easgd import Eamsgd, Easgd
from covey.decentral.elastic.tree_easgd import TreeEasgd
from covey.strategy import CountedRun, Entry, LinkBytes, TrafficFormula

BLOCKS = TrafficFormula("2 (n-1)/n / period", formulas.all_periods)
CENTRE = TrafficFormula("2 / period", formulas.centre)


def _learners(run: CountedRun) -> LinkBytes:
    """A ring's sum for every round, in which each learner of a worker has taken a step."""
    learners = run.settings["learners"]
    assert isinstance(learners, int)
    return formulas.ring(run, run.steps // (learners * run.period))


ENTRIES: Mapping[str, Entry] = {
    "local_sgd": Entry(
        LocalSgd, "Lin et al. 2018; Stich 2019", codecs="exchanges", measures=True,
        use="A slow network between equal machines.",
        details="The k-th period is `round(period · growth^k)` steps long. Before step `after` all step together on "
        "the mean gradient (post-local SGD). At an average the optimizers' own state is left alone (`momentum=keep`), "
        "cleared (`reset`) or averaged too (`average`). `pattern` and `local` as in `allreduce`.",
        tries=("local_sgd(period=4)", "local_sgd(period=32)", "local_sgd(period=128)"),
        traffic=TrafficFormula("2 (n-1)/n / period", formulas.whole_periods), timelines=("local_sgd(period=2)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"optimizers of their own"}),
        test="decentral/test_local_sgd.py::test_workers_drift_until_the_period_is_over_and_then_agree_to_the_bit",
    ),
    "sparknet": Entry(
        SparkNet, "Moritz et al. 2016", codecs="exchanges",
        use="As `local_sgd`, on a cluster with a master.",
        details="A round that is cut short counts as well.",
        traffic=TrafficFormula("2 / period", formulas.rounds), timelines=("sparknet(period=2)",),
        test="decentral/test_sparknet.py::test_only_models_travel_and_only_between_workers_and_master",
    ),
    "bmuf": Entry(
        Bmuf, "Chen & Huo 2016", codecs="exchanges", measures=True,
        use="As `local_sgd`, with many workers, whose plain mean would move too little.",
        details="The block momentum is 1 - 1/n unless given; `reset=true` clears the local optimizers' state after "
        "every block.",
        tries=(
            "bmuf(momentum=0.4, reset=false)", "bmuf(period=4, momentum=0.4, reset=false)",
            "bmuf(period=32, momentum=0.4, reset=false)",
        ),
        traffic=BLOCKS, timelines=("bmuf(period=2)",),
        on_loss="continue", ranges=True,
        test="decentral/test_outer.py::test_block_momentum_comes_to_the_sum_of_a_geometric_series",
    ),
    "diloco": Entry(
        Diloco, "Douillard et al. 2023", example="diloco(period=8)", codecs="exchanges", measures=True,
        use="Very slow links between workers, on long runs.",
        details="The local optimizers' state stays. With `local=4` every four neighbouring workers are a site: they "
        "step together on their mean gradient, and only the first of them exchanges models, or with a codec what has "
        "changed, with other sites.",
        tries=("diloco(period=32)",),
        traffic=BLOCKS, timelines=("diloco(period=2)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"optimizers of their own"}),
        test="decentral/test_outer.py::test_diloco_is_pytorchs_nesterov",
    ),
    "crossbow": Entry(
        Crossbow, "Koliousis et al. 2019", codecs="exchanges",
        use="Small batches that do not fill a machine: several learners share it.",
        details="The learners of a worker take turns, a batch each; all workers move the central model after every "
        "`period` rounds. The pull is 1/(all learners) unless given. When the learning rate jumps, all begin again at "
        "the central model. `tune=true` adds learners, from 1, while samples per second grow by 5 %.",
        traffic=TrafficFormula("2 (n-1)/n / learners / period", _learners), timelines=("crossbow",),
        test="decentral/test_crossbow.py::test_learners_differ_and_centres_do_not",
    ),
    "easgd": Entry(
        Easgd, "Zhang, Choromanska & LeCun 2015", codecs="exchanges",
        use="A slow network, and machines of different speed: workers explore around a common centre.",
        details="The pull is 0.9/n unless given; `pull·(n+1)` must stay below 2. `mode=synchronous` gives all the "
        "same centre, `round_robin` each a fresh one, in rank order. With `momentum` the gradient is taken ahead, and "
        "the learning rate is multiplied by 1 - momentum, so that it keeps its meaning. `adapt=true` raises the pull "
        "by a tenth, while it is stable, when the loss stalls.",
        tries=("easgd(period=8)", "easgd(period=16)", "easgd(period=32)"),
        traffic=CENTRE, timelines=("easgd(period=2)",),
        on_loss="continue", ranges=True,
        fault_traits=frozenset({"forces cancel", "models of their own"}),
        test="decentral/test_easgd.py::test_exchanges_conserve_the_sum_of_workers_and_centre",
    ),
    "eamsgd": Entry(
        Eamsgd, "Zhang, Choromanska & LeCun 2015", example="eamsgd(momentum=0.9)", codecs="exchanges",
        use="As `easgd`, on long runs that gain from momentum.",
        traffic=CENTRE, timelines=("eamsgd(period=2)",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"models of their own"}),
        test="decentral/test_easgd.py::test_the_gradient_is_taken_ahead_and_the_force_has_no_momentum",
    ),
    "tree_easgd": Entry(
        TreeEasgd, "Zhang 2016", codecs="exchanges",
        use="As `easgd`, with more workers than one centre can serve.",
        details="Worker 0 is the root. Exchanges are `slower` times as rare on each level nearer to it. The pull is "
        "0.9/(fanout+1) unless given.",
        traffic=TrafficFormula("(n-1)/n / up + (n-1)/n / down", formulas.leaves),
        timelines=("tree_easgd(fanout=2, up=1, down=2)",),
        on_loss="continue",
        test="decentral/test_tree_easgd.py::test_only_the_receiver_is_pulled",
    ),
    "mpca": Entry(
        Mpca, "Langer et al. 2018", codecs="exchanges",
        use="A slow network whose delay should never stop a step.",
        details="The loss gets rho/2 · |w - C|², so the pull passes your optimizer. C is the mean of all models, "
        "brought up to date in the background and extrapolated along its last change for at most `bound` steps.",
        traffic=TrafficFormula("at most 2, as the network allows", formulas.counted, (Gathered, Meaned), beside=0),
        timelines=("mpca",),
        test="decentral/test_mpca.py::test_the_centre_moves_between_two_receipts_and_not_beyond_the_bound",
    ),
}  # fmt: skip
