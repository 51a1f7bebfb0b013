"""What lies around the kernels: which form is chosen, threads, forks, types, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange import kernels
from tests.exchange.kernel_forms import NAMES, SCALED, Form, inputs, pair

pytestmark = pytest.mark.xdist_group("kernels")  # one process compiles them


def python(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


def parts(wire: Any) -> tuple[Tensor, ...]:
    return wire if isinstance(wire, tuple) else (wire,)


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parts(one), parts(two), strict=True))


def test_numba_is_imported_late_and_not_needed() -> None:
    script = """
import sys, torch, covey
from covey.exchange import kernels
assert "numba" not in sys.modules and "triton" not in sys.modules
sys.modules["numba"] = None  # as if it were not there
assert kernels._form("int8_encode", "cpu").__module__.endswith("plain_levels")
print(kernels.int8_encode(torch.linspace(-1, 1, 9), None, 4, 1)[0].tolist())
"""
    assert kernels._form("int8_encode", "cpu").__module__ == "covey.exchange.kernels.cpu"
    assert python(script).strip() == str(kernels.int8_encode(torch.linspace(-1, 1, 9), None, 4, 1)[0].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_threads_change_nothing(name: str) -> None:
    form, threads = Form("cpu", "cpu"), torch.get_num_threads()
    x, residual = inputs(form, 300_001)
    encode, decode = pair(form, name, 100 if name in SCALED else 0)
    done = []
    try:
        for many in (1, 2, 3):
            torch.set_num_threads(many)
            kept = residual.clone()
            wire = encode(x, kept)
            done.append((*parts(wire), kept, decode(wire, torch.empty_like(x))))
    finally:
        torch.set_num_threads(threads)
    assert same(done[0], done[1]) and same(done[0], done[2])


def test_a_forked_process_computes_with_threads_of_its_own() -> None:
    """The pool's threads stay behind in the parent: a child that waited for them would wait forever."""
    script = """
import os, torch
from covey.exchange import kernels
torch.set_num_threads(2)
x = torch.randn(300_000)
first = kernels.onebit_encode(x, None, 0)[0]
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(kernels.onebit_encode(x, None, 0)[0], first) else 1)
print(os.waitpid(child, 0)[1])
"""
    assert python(script).strip() == "0"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_read_as_float32(dtype: torch.dtype) -> None:
    x = torch.randn(20, 30).to(dtype)
    wide = x.float().view(-1)
    assert same(kernels.int8_encode(x, None, 64, 1), kernels.int8_encode(wide, None, 64, 1))
    assert same(kernels.topk(x.t(), None, 7), kernels.topk(x.t().reshape(-1).float(), None, 7))


@pytest.mark.parametrize("bits", range(1, 17))
def test_packed_bits_are_where_they_should_be(bits: int) -> None:
    for count in (0, 1, 7, 8, 9, 100, 8191, 8200):
        values = torch.randint(0, 2**bits, (count,), dtype=torch.int32)
        packed = kernels.pack_bits(values, bits)
        stream = sum(int(value) << (n * bits) for n, value in enumerate(values))
        assert bytes(packed.tolist()) == stream.to_bytes(-(-count * bits // 8), "little")
        assert torch.equal(kernels.unpack_bits(packed, bits, count), values)


REFUSED: dict[str, Callable[[], Any]] = {
    "too few bytes": lambda: kernels.twobit_decode(torch.zeros(2, dtype=torch.uint8), 0.5, torch.zeros(9)),
    "too many scales": lambda: kernels.int8_decode(torch.zeros(9, dtype=torch.int8), torch.zeros(2), 0, torch.zeros(9)),
    "another type": lambda: kernels.int8_decode(torch.zeros(9), torch.zeros(1), 0, torch.zeros(9)),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_wires_of_the_wrong_size_are_refused(what: str) -> None:
    with pytest.raises(WireError):
        REFUSED[what]()


def test_a_single_shared_seed_draws_the_same_everywhere_and_apart_for_others() -> None:
    x = torch.full((4096,), 0.5)
    x[0] = 1
    one, again, other = (kernels.terngrad_encode(x, None, 0, seed, 0.0)[0] for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    uniform = torch.stack([kernels.chance.uniform(seed, 50_000, torch.device("cpu")) for seed in range(6)])
    assert (uniform.mean(1) - 0.5).abs().max() < 0.006  # 4.5 standard errors
    assert (torch.corrcoef(uniform) - torch.eye(6)).abs().max() < 0.02
    lagged = torch.corrcoef(torch.stack([uniform[0, :-1], uniform[0, 1:]]))[0, 1]
    assert abs(float(lagged)) < 0.02


def test_codes_are_kept_where_one_may_write(tmp_path: Any) -> None:
    """A folder that nobody may write to is no reason to fail."""
    script = """
import torch
from covey.exchange import kernels
print([numbers.tolist() for numbers in kernels.topk(torch.tensor([0.0, 2.0, 0.0]), None, 1)])
"""
    shut = os.environ | {"NUMBA_CACHE_DIR": "/proc/nowhere"}
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=shut)
    assert done.stdout.strip() == "[[1], [2.0]]"


@pytest.mark.parametrize("form", ["plain", "cpu"])
def test_the_peak_of_a_large_block_is_that_of_its_largest_number(form: str) -> None:
    """Signs deviate by 1, so that nothing lies beyond 2.5 deviations; a block is measured piece by piece."""
    signs = torch.where(torch.arange(100_000) % 2 == 0, 1.0, -1.0)
    assert Form(form, "cpu").terngrad_scale(signs, None, 0, 2.5).tolist() == [1.0]
