"""A module laid out flat: every number once, in its place, and still the module's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from covey.errors import PlanError
from covey.model.flat import Flat
from covey.model.slots import read_description
from covey.vector import Piece


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def backward(module: nn.Module) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    module(x).square().mean().backward()


def test_the_vector_holds_the_numbers_of_the_module_and_moves_them() -> None:
    module = network()
    before = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    flat = Flat(module)
    assert torch.equal(flat.params.parts[0], before)
    flat.params.parts[0].fill_(0.5)
    assert all((p == 0.5).all() for p in module.parameters())
    with torch.no_grad():
        module.get_parameter("0.weight").zero_()
    assert (flat.params.parts[0][:12] == 0).all() and flat.params.parts[0][12] == 0.5
    assert flat.describe()[:2] == ["0.weight (4, 3) float32", "0.bias (4,) float32"]


def test_a_module_trains_as_before() -> None:
    torch.manual_seed(0)
    plain = network()
    torch.manual_seed(0)
    laid_out = network()
    flat = Flat(laid_out)
    backward(plain)
    backward(laid_out)
    flat.collect()
    assert torch.equal(
        flat.grads.parts[0], torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
    )
    assert torch.equal(
        flat.buffers.parts[0], torch.cat([plain.get_buffer("1.running_mean"), plain.get_buffer("1.running_var")])
    )


def test_tied_parameters_appear_once_and_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    weight = module[1].weight = module.get_parameter("0.weight")
    flat = Flat(module)
    assert flat.params.numel == 16
    assert module[1].weight is module[0].weight is weight
    module(torch.ones(2, 4)).sum().backward()
    flat.collect()
    assert torch.equal(flat.grads.parts[0], weight.grad.reshape(-1))  # type: ignore[union-attr]


def test_frozen_parameters_stay_out() -> None:
    module = network()
    module[0].requires_grad_(False)
    kept = module[0].weight
    flat = Flat(module)
    assert [slot.name for slot in flat.slots] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert module[0].weight is kept and kept.grad is None
    with pytest.raises(PlanError, match="no trainable parameter"):
        Flat(module.requires_grad_(False))


def test_one_part_for_each_dtype() -> None:
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2)])
    flat = Flat(module)
    assert [(part.dtype, part.numel()) for part in flat.params.parts] == [
        (torch.float32, 12),
        (torch.float64, 6),
        (torch.bfloat16, 6),
    ]
    assert {slot.name: slot.part for slot in flat.slots}["3.weight"] == 0


def test_numbers_without_dimension_and_empty_ones() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.tensor(3.0))
            self.none = nn.Parameter(torch.empty(0, 4))

    module = Scalar()
    flat = Flat(module)
    assert flat.params.numel == 1
    flat.params.mul_(2)
    assert module.one.item() == 6 and module.none.shape == (0, 4)


# -- what users do to it ----------------------------------------------------------------------------------------------


def test_gradients_set_to_none_are_found_again() -> None:
    module = network()
    flat = Flat(module)
    backward(module)
    expected = flat.grads.clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.get_buffer("1.running_mean").zero_()
    optimizer.zero_grad(set_to_none=True)
    backward(module)  # makes gradients of its own
    flat.collect()
    assert torch.allclose(flat.grads.parts[0], expected.parts[0])
    gradient = module.get_parameter("0.weight").grad
    assert gradient is not None and gradient.data_ptr() == flat.grads.parts[0].data_ptr()
    optimizer.zero_grad(set_to_none=True)
    flat.collect()
    assert flat.grads.norm() == 0, "no gradient is a gradient of 0"


def test_gradients_that_user_code_replaces_are_found_again() -> None:
    module = network()
    flat = Flat(module)
    backward(module)
    module[0].weight.grad = torch.full((4, 3), 7.0)
    flat.collect()
    assert (flat.grads.parts[0][:12] == 7).all()


def test_a_gradient_may_be_collected_for_some_parameters_only() -> None:
    module = network()
    flat = Flat(module)
    flat.grads.parts[0].fill_(5)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    flat.collect_grads([slot for slot in flat.slots if slot.layer == "2"])
    assert (flat.grads.parts[0][-10:] == 0).all() and (flat.grads.parts[0][:-10] == 5).all()


def test_clear_lets_backward_add_into_the_vector_itself() -> None:
    module = network()
    flat = Flat(module)
    flat.grads.parts[0].fill_(5)
    flat.clear()
    backward(module)
    gradient = module.get_parameter("2.bias").grad
    assert gradient is not None and gradient.data_ptr() == flat.grads.parts[0][-2:].data_ptr()
    before = flat.grads.clone()
    flat.collect()
    assert torch.equal(before.parts[0], flat.grads.parts[0])


def test_buffers_that_user_code_replaces_are_found_again() -> None:
    module = network()
    flat = Flat(module)
    module[1].running_mean = torch.full((4,), 2.0)  # a new tensor, as much code does
    flat.collect()
    assert flat.buffers.parts[0].tolist() == [2.0] * 4 + [1.0] * 4
    flat.buffers.zero_()
    assert (module[1].running_mean == 0).all(), "it is the module's again"


def test_only_float_buffers_are_averaged() -> None:
    flat = Flat(network())
    assert [slot.name for slot in flat.buffer_slots] == ["1.running_mean", "1.running_var"]
    assert list(flat.others()) == ["1.num_batches_tracked"]


def test_state_dicts_go_in_and_out() -> None:
    module, other = network(), network()
    flat = Flat(module)
    module.load_state_dict(other.state_dict())
    assert torch.equal(flat.params.parts[0], torch.cat([p.detach().reshape(-1) for p in other.parameters()]))
    assert list(module.state_dict()) == list(other.state_dict())


# -- pieces -----------------------------------------------------------------------------------------------------------


def assert_covered_once(flat: Flat, pieces: list[Piece]) -> None:
    count = flat.params.map(torch.zeros_like)
    for piece in pieces:
        for part in count.cut(piece).parts:
            part.add_(1)
    assert all((part == 1).all() for part in count.parts)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12), data=st.data())
def test_whole_parameters_are_dealt_to_servers_once(sizes: list[int], data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, len(sizes)))
    dtypes = data.draw(st.lists(st.sampled_from([torch.float32, torch.float64]), min_size=len(sizes), max_size=12))
    pairs = zip(sizes, dtypes, strict=False)
    module = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in pairs])
    flat = Flat(module)
    pieces = flat.whole(servers)
    assert len(pieces) == servers
    assert_covered_once(flat, pieces)
    for piece in pieces:
        assert flat.params.cut(piece).numel > 0
        for slot in flat.slots:
            start, stop = piece[slot.part]
            outside, inside = stop <= slot.start or slot.stop <= start, start <= slot.start < slot.stop <= stop
            assert outside or inside, "a parameter was cut"


def test_whole_parameters_are_balanced_by_bytes() -> None:
    module = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (100, 1, 1, 1, 97)])
    flat = Flat(module)
    assert [flat.params.cut(piece).numel for piece in flat.whole(2)] == [100, 100]


def test_more_servers_than_parameters() -> None:
    with pytest.raises(PlanError, match="use servers=6 or fewer"):
        Flat(network()).whole(7)


def test_layers_in_the_order_of_the_module() -> None:
    layers = Flat(network()).layers()
    assert [(name, [slot.name for slot in slots]) for name, slots in layers] == [
        ("0", ["0.weight", "0.bias"]),
        ("1", ["1.weight", "1.bias"]),
        ("2", ["2.weight", "2.bias"]),
    ]


def test_differences_are_told_in_words() -> None:
    flat = Flat(network())
    assert flat.differs(flat.describe()) == ""
    other = Flat(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))).describe()
    assert flat.differs(other) == "it has 0.weight (5, 3) float32 where this has 0.weight (4, 3) float32"
    assert flat.differs(flat.describe()[:-1]) == "it has 5 parameters, this has 6"


def test_gradients_may_stay_where_backward_made_them_and_what_has_none_has_zeros() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    flat = Flat(module)
    flat.grads.map(lambda part: part.fill_(7))
    module.zero_grad()
    module[0](torch.ones(1, 2)).sum().backward()
    made = module[0].weight.grad
    flat.complete_grads()
    assert module[0].weight.grad is made
    assert module[1].weight.grad is not None and not module[1].weight.grad.any()
    flat.collect()
    assert flat.grads.parts[0].tolist() == [1, 1, 1, 1, 1, 1] + [0] * 6


def test_a_description_says_where_everything_lies() -> None:
    module = nn.ModuleDict({"a b": nn.Linear(3, 2), "c": nn.Linear(2, 1).double()})
    flat = Flat(module)
    assert read_description(flat.describe()) == flat.slots
