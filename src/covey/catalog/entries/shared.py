"""Workers of one machine write the same memory."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.decentral.shared.dogwild import Dogwild
from covey.decentral.shared.hogwild import Hogwild, HogwildPlusPlus
from covey.strategy import FOR_STUDY, CountedRun, Entry, LinkBytes, TrafficFormula

ONE_MEMORY = "writes into memory that all share: nothing travels"


def _nothing(run: CountedRun) -> LinkBytes:
    return {}


NOTHING = TrafficFormula("0", _nothing)

ENTRIES: Mapping[str, Entry] = {
    "hogwild": Entry(
        Hogwild, "Recht et al. 2011", example="hogwild(momentum=drop)", plain=ONE_MEMORY,
        use="One machine (engines `local` and `simulated`) and sparse gradients.",
        details="An optimizer with momentum is refused; `momentum=drop` trains without it.",
        traffic=NOTHING, timelines=("hogwild",),
        test="decentral/test_hogwild.py::test_a_forced_race_loses_an_update",
    ),
    "hogwild++": Entry(
        HogwildPlusPlus, "Zhang, Hsieh & Akella 2016", example="hogwild++(momentum=drop)", plain=ONE_MEMORY,
        use="As `hogwild`, on a machine with several sockets.",
        details="The token stays for `hold` updates of a cluster.",
        traffic=NOTHING, timelines=("hogwild++(hold=2)",),
        test="decentral/test_hogwild.py::test_there_is_exactly_one_token_and_it_walks_the_ring",
    ),
    "dogwild": Entry(
        Dogwild, "Noel & Osindero 2014",
        plain="loses blocks on the way, and what a codec carries on must arrive; use gosgd or malt",
        use="Several such machines, on a network that may lose messages.",
        details="After a step one of `blocks` blocks goes to every other machine, lost where the link is full. With "
        "fewer `machines` than workers, each machine is a Hogwild.",
        traffic=TrafficFormula("(n-1) / blocks", formulas.blocks), timelines=("dogwild",),
        unadvised=FOR_STUDY,
        test="decentral/test_dogwild.py::test_loss_and_disorder_do_not_stop_it",
    ),
}  # fmt: skip
