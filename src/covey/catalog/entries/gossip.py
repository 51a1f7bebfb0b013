"""Workers exchange models or gradients with a few others at a time."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.decentral.gossip.adpsgd import Adpsgd, HalfDifference, Meet
from covey.decentral.gossip.ako import Ako
from covey.decentral.gossip.butterfly_mixing import Butterfly
from covey.decentral.gossip.dpsgd import Dpsgd
from covey.decentral.gossip.gosgd import Gosgd, Gossip
from covey.decentral.gossip.malt import Malt
from covey.decentral.gossip.push_sum import Sgp
from covey.strategy import CountedRun, Entry, LinkBytes, TrafficFormula


def _gossips(run: CountedRun) -> LinkBytes:
    """A model and a weight in each message."""
    return {link: count * (run.model + 8) for link, count in run.counts.items()}


ENTRIES: Mapping[str, Entry] = {
    "gosgd": Entry(
        Gosgd, "Blot et al. 2016", graph="complete", codecs="exchanges",
        use="Machines of very different speed on a slow network, without a server.",
        details="Weights, including those in transit, always sum to 1.",
        tries=("gosgd(probability=0.05)", "gosgd(probability=0.25)"),
        traffic=TrafficFormula("probability, on average", _gossips, (Gossip,), beside=8),
        timelines=("gosgd(probability=0.9)",),
        on_loss="continue", ranges=True,
        fault_traits=frozenset({"weights sum to 1"}),
        test="decentral/test_gosgd.py::test_weights_sum_to_one_at_every_instant",
    ),
    "dpsgd": Entry(
        Dpsgd, "Lian et al. 2017", graph="ring", codecs="exchanges",
        use="Equal machines on a network with high latency: a worker waits for its neighbours alone.",
        details="The gradient is taken at the weights before mixing, while models travel.",
        traffic=TrafficFormula("2", formulas.neighbours), timelines=("dpsgd",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"models of their own"}),
        test="decentral/test_dpsgd.py::test_one_step_by_hand",
    ),
    "adpsgd": Entry(
        Adpsgd, "Lian et al. 2018", graph="bipartite", codecs="exchanges",
        use="As `dpsgd`, with machines of different speed.",
        details="The graph must have two sides, as a ring with an even number of workers has: one side asks, the "
        "other answers at any moment. An average moves both by the same half, so no gradient is lost in it.",
        traffic=TrafficFormula("at most 1, as the network allows", formulas.counted, (Meet, HalfDifference), beside=0),
        timelines=("adpsgd",),
        on_loss="continue", ranges=True,
        test="decentral/test_adpsgd.py::test_an_old_gradient_moves_weights_that_were_averaged_meanwhile",
    ),
    "sgp": Entry(
        Sgp, "Assran et al. 2019", graph="one_peer_exponential", codecs="exchanges",
        use="As `dpsgd`, at half the bytes, and with `overlap=1` where some links are slow now and then.",
        details="The graph's columns must sum to 1.",
        traffic=TrafficFormula("1", formulas.one_peer), timelines=("sgp",),
        on_loss="continue", ranges=True, fault_traits=frozenset({"models of their own"}),
        test="decentral/test_push_sum.py"
        "::test_on_an_irregular_graph_the_quotient_comes_to_the_mean_and_x_does_not",
    ),
    "butterfly": Entry(
        Butterfly, "Zhao & Canny 2013", codecs="exchanges",
        use="As `dpsgd`, where all should agree after log2 n steps.",
        details="The number of workers must be a power of two.",
        traffic=TrafficFormula("1", formulas.partners), timelines=("butterfly",),
        test="decentral/test_butterfly_mixing.py::test_consensus_after_log2_n_steps_and_not_before",
    ),
    "malt": Entry(
        Malt, "Li et al. 2015", graph="complete", codecs="exchanges",
        use="A fast network that may lose messages.",
        details="`over halton` has log2 n peers. Gradients travel where all hear all, models elsewhere. "
        "`barrier=true` makes all wait for each other; with `bound=s` a worker is at most s steps ahead of those it "
        "hears, and folds every vector they sent: bounded staleness without a server.",
        traffic=TrafficFormula("n - 1", formulas.everyone), timelines=("malt", "malt(bound=1)"),
        on_loss="continue", ranges=True, fault_traits=frozenset({"models of their own"}),
        test="decentral/test_malt.py::test_of_a_sender_that_is_100_times_as_fast_only_the_newest_are_left",
    ),
    "ako": Entry(
        Ako, "Watcharapichat et al. 2016", codecs="exchanges",
        use="Many workers without a server, each of which sends one gradient a step, however many they are.",
        details="`partitions` are n - 1 unless given; more send less, later. Momentum multiplies what that delay "
        "does: lower it or the learning rate.",
        traffic=TrafficFormula("1", formulas.partitions), timelines=("ako",),
        test="decentral/test_ako.py::test_every_number_reaches_every_peer_exactly_once",
    ),
}  # fmt: skip
