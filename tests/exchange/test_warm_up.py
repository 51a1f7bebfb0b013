"""What a codec compiles or loads is there before a run's clock starts, and nothing of the run has changed by that."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from covey import catalog
from covey.exchange.codecs.by_name import CODECS
from covey.exchange.warm_up import warm
from covey.vector import Vector

LOADED = """
import sys, torch
from covey import catalog
from covey.vector import Vector
(role, *_) = catalog.resolve("local_sgd(period=2) + onebit", 2).layout(2, None)
assert "covey.exchange.kernels.cpu" not in sys.modules
role.prepare(Vector([torch.zeros(10)]))
assert "covey.exchange.kernels.cpu" in sys.modules
"""


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_codec_can_be_tried(name: str, dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    warm(CODECS[name]().codec(), Vector([torch.zeros(7, dtype=dtype)]))
    assert torch.equal(torch.get_rng_state(), before), "the chance of the model is none of the codec's"


def test_roles_try_the_codec_of_their_strategy_and_no_other() -> None:
    for spec, prepared in (("bsp + int8", True), ("bsp + int8 over proxies(groups=2)", True), ("bsp", False)):
        roles = catalog.resolve(spec, 4).layout(4, None)
        assert {role.prepare is not None for role in roles} == {prepared}, spec


def test_what_has_to_be_loaded_is_loaded_then() -> None:
    subprocess.run([sys.executable, "-c", LOADED], check=True)


def test_where_there_are_no_numbers_nothing_is_tried() -> None:
    warm(CODECS["onebit"]().codec(), Vector([torch.zeros(7, device="meta")]))
    warm(CODECS["onebit"]().codec(), Vector(()))
