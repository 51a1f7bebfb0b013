"""Fully connected layers travel as something smaller than their gradients."""

from __future__ import annotations

from collections.abc import Mapping

from covey.catalog import formulas
from covey.central.layers.outer_products import OuterProducts
from covey.central.layers.poseidon import Poseidon
from covey.central.layers.weird_trick import OneWeirdTrick
from covey.strategy import MEAN_GRADIENT, Entry, TrafficFormula

GATES = "looks into one worker's whole forward and backward, of which a stage has a part: use bsp, sliced or allreduce"
FACTORS = "sends factors, which must make the gradient to the bit; use"
PAGE = "See [fully connected layers](models.md#fully-connected-layers-units-and-factors)."

ENTRIES: Mapping[str, Entry] = {
    "poseidon": Entry(
        Poseidon, "Zhang et al. 2017", plain=f"{FACTORS} allreduce", whole=GATES,
        use="Large fully connected layers and small batches.",
        details="See [communication scheduling](scheduling.md#sufficient-factors-poseidon).",
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula("at most 2 (n-1)/n", formulas.factors), timelines=("poseidon",),
        test="central/test_poseidon.py::test_bytes_are_those_of_the_factors_and_of_the_rest",
    ),
    "outer_products": Entry(
        OuterProducts, "Chilimbi et al. 2014", plain=f"{FACTORS} asynchronous", placed=True,
        use="Project Adam's way: asynchronous, with large fully connected layers.", details=PAGE,
        traffic=TrafficFormula("at most 2", formulas.products), timelines=("outer_products",),
        test="central/test_outer_products.py::test_few_samples_go_as_inputs_and_errors_and_convolutions_as_gradients",
    ),
    "one_weird_trick": Entry(
        OneWeirdTrick, "Krizhevsky 2014", plain="sends what layers make, not their gradients; use allreduce",
        whole="divides the layers of its model itself: omit 'with mesh(...)'",
        use="Convolutions followed by fully connected layers that hold most of the parameters.", details=PAGE,
        mathematics=MEAN_GRADIENT,
        traffic=TrafficFormula("outputs and errors of the divided layers, and a sum of the rest", formulas.units),
        timelines=("one_weird_trick", "one_weird_trick(scheme=b)", "one_weird_trick(scheme=c)"),
        unadvised="its cost depends on the layers of a model, which no formula here knows",
        test="central/test_weird_trick.py::test_fully_connected_weights_never_move_and_the_front_is_summed",
    ),
}  # fmt: skip
