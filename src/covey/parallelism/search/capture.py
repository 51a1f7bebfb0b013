"""From a model to its operators: the steps of its forward, what each costs here, and by what each can be divided."""

from __future__ import annotations

import operator as python
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from covey.model.threads import one_thread
from covey.nn.experts import Experts
from covey.parallelism.search.operator_times import OperatorTimes
from covey.parallelism.search.operators import WHOLE, Operator, OperatorGraph, Way
from covey.parallelism.tensor.annotations import KINDS
from covey.parallelism.trace import Inputs, Traced, traced, undisturbed
from covey.parallelism.units.output_units import ELEMENTWISE_FUNCTIONS, ELEMENTWISE_METHODS, ELEMENTWISE_MODULES

SUMS = {python.add, python.mul, python.sub, torch.add, torch.mul, torch.sub}
"""Of two tensors of one shape each number is made of two numbers: it can be done with a slice of both."""

MOVES = {"view", "reshape", "permute", "transpose", "contiguous", "unbind", "chunk", "flatten"}
"""Methods that only say where numbers lie: between the layers of an attention they pass on what is divided by heads."""


def operators_of(
    model: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor] | None = None, *,
    repeat: int = 5, members: tuple[int, ...] = (), state: float = 0.0,
) -> OperatorGraph:  # fmt: skip
    """The operators of a model on a batch, with times of whole ones and of those divided among so many members.

    With repeat=0 nothing is timed, but counted, which every machine does alike.
    """
    found = traced(model, inputs, inside=True)
    capture = _Capture(found, OperatorTimes(repeat), members)
    with undisturbed(model), one_thread(), torch.enable_grad():
        capture.run(*(x.clone() for x in inputs))
        if loss is not None:
            capture.add_loss(lambda *values: loss(found.rebuild(values)))
        capture.add_unused(found.root)
    layers = tuple(name for name, module in model.named_modules() if type(module) in KINDS)
    return OperatorGraph(
        operators=tuple(capture.operators), edges=tuple(sorted(capture.edges)), samples=len(inputs[0]), state=state,
        notes=tuple(found.notes), layers=layers,
    )  # fmt: skip


class _Capture(fx.Interpreter):
    """Runs a graph node by node, each from values that know nothing of those before, and times it both ways."""

    def __init__(self, found: Traced, times: OperatorTimes, members: tuple[int, ...]) -> None:
        super().__init__(fx.GraphModule(found.root, found.graph))
        self.times, self.members = times, members
        self.operators: list[Operator] = []
        self.edges: set[tuple[int, int]] = set()
        self.made: dict[str, frozenset[int]] = {}  # by the name of a node: the operators that its value is made of
        self.seen: set[int] = set()  # parameters and buffers that were counted
        self.shared = _shared(found)
        tensors = (*found.root.parameters(), *found.root.buffers())
        self.stored = {_storage(tensor) for tensor in tensors}  # memory that was counted, or is no activation's
        self.copies: dict[int, int] = {}  # memory of a copy, and of what it is a copy of
        self.alive: list[Tensor] = []  # so that no memory is used twice
        self.counts: dict[str, int] = {}  # operators of each module so far
        self.outputs: list[Any] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output":
            result = super().run_node(n)
            self.last = frozenset().union(*(self.made.get(a.name, frozenset()) for a in n.all_input_nodes))
            self.outputs = pytree.tree_leaves(result)
            return result
        if not n.op.startswith("call_"):
            self.made[n.name] = frozenset()
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = pytree.tree_map_only(Tensor, self._copy, (args, kwargs))
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        with saved_tensors_hooks(self._saved, lambda tensor: tensor):
            self.kept = 0
            result = getattr(self, n.op)(n.target, args, kwargs)
        before = frozenset().union(*(self.made.get(a.name, frozenset()) for a in n.all_input_nodes))
        floats = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]
        if not floats:
            self.made[n.name] = frozenset()  # sizes and such
            return result
        self._add(n, module, args, kwargs, floats, before)
        return pytree.tree_map_only(Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), result)

    def _add(
        self, n: fx.Node, module: nn.Module | None, args: Any, kwargs: Any, made: list[Tensor], before: frozenset[int]
    ) -> None:  # fmt: skip
        number, work = len(self.operators), lambda *a, **k: getattr(self, n.op)(n.target, a, k)
        weights = [p for p in module.parameters() if p.requires_grad] if module else []
        outside = [self.fetch_attr(str(a.target)) for a in n.all_input_nodes if a.op == "get_attr"]
        read = [x for x in outside if isinstance(x, Tensor)]  # rather than a graph of a condition
        owned, fixed = self._first_used([*_held(module), *read])
        ways, most = ways_of(n, module, args)
        if any(x.requires_grad for x in read) or str(n.target) in self.shared:
            ways, most = ("whole",), 1  # a run divides no such weights
        times = {WHOLE: self.times.of(_signature(n, module, args, kwargs), work, args, kwargs, weights)}
        for way in ways[1:]:
            for members in (count for count in self.members if 1 < count <= most):
                if (part := _part(module, way, members, args)) is not None:
                    local, given = part
                    signature = _signature(n, local, given, kwargs)
                    times[way, members] = self.times.of(signature, local, given, kwargs, list(local.parameters()))
        self.operators.append(
            Operator(
                name=_name(n), ways=ways, times=times, weights=_bytes(owned), fixed=_bytes(fixed), kept=self.kept,
                output=_bytes(made), most=most, alike=self._alike(n, made), **_routing(module, made),
            )
        )
        self.edges |= {(one, number) for one in before}
        self.made[n.name] = frozenset({number})

    def _first_used(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Those that no operator has counted yet: trained ones, and others."""
        first = {id(x): x for x in tensors if id(x) not in self.seen}
        self.seen.update(first)
        return [x for x in first.values() if x.requires_grad], [x for x in first.values() if not x.requires_grad]

    def add_unused(self, root: nn.Module) -> None:
        """What the forward does not use needs memory, too, and its gradients are exchanged."""
        owned, fixed = self._first_used(_held(root))
        if owned or fixed:
            self.operators.append(Operator(name="not in the forward", weights=_bytes(owned), fixed=_bytes(fixed)))

    def add_loss(self, loss: Callable[..., Tensor]) -> None:
        """The loss, as one more operator on whole outputs."""
        given = tuple(_fresh(x) if isinstance(x, Tensor) else x for x in self.outputs)
        number, times = len(self.operators), {WHOLE: self.times.of("loss", loss, given, {}, [])}
        self.operators.append(Operator(name="loss", times=times))
        self.edges |= {(one, number) for one in self.last}

    def _alike(self, n: fx.Node, made: list[Tensor]) -> str:
        """Its place in a numbered block, without the number; empty for what lies in none."""
        owner = _owner(n)
        self.counts[owner] = place = self.counts.get(owner, -1) + 1
        block = re.sub(r"\b[0-9]+\b", "*", owner)
        if "*" not in block or (n.op == "call_module" and block.endswith("*")):
            return ""
        shapes = "x".join(str(tuple(x.shape)) for x in made)
        return f"{block} #{place} {getattr(n.target, '__name__', n.target) if n.op != 'call_module' else ''} {shapes}"

    def _copy(self, x: Tensor) -> Tensor:
        copy = _fresh(x)
        self.copies[_storage(copy)] = self.copies.get(_storage(x), _storage(x))
        self.alive += [x, copy]
        return copy

    def _saved(self, tensor: Tensor) -> Tensor:
        where = self.copies.get(_storage(tensor), _storage(tensor))
        if where not in self.stored:
            self.stored.add(where)
            self.alive.append(tensor)
            self.kept += tensor.untyped_storage().nbytes()
        return tensor


def _routing(module: nn.Module | None, made: list[Tensor]) -> dict[str, int]:
    """What a layer of experts has for a mesh to divide."""
    if not isinstance(module, Experts):
        return {}
    inside = [weight for weight in module.experts.parameters() if weight.requires_grad]
    return {"experts": len(module.experts), "routed": _bytes(inside), "tokens": module.top * _bytes(made)}


def _held(module: nn.Module | None) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()] if module else []


def _shared(found: Traced) -> set[str]:
    """Modules that are called more than once, or have weights of another one: they have one choice, or none."""
    called = Counter(str(node.target) for node in found.graph.nodes if node.op == "call_module")
    owners = Counter(id(p) for module in found.root.modules() for p in module._parameters.values() if p is not None)
    tied = [name for name in called if any(owners[id(p)] > 1 for p in found.root.get_submodule(name).parameters())]
    return {name for name, times in called.items() if times > 1} | set(tied)


def ways_of(n: fx.Node, module: nn.Module | None, args: Any) -> tuple[tuple[Way, ...], int]:
    """By what an operator can be divided, and among how many: the rules for each kind; others stay whole."""
    if type(module) is nn.Linear:
        return ("whole", "column", "row"), min(module.in_features, module.out_features)
    if type(module) is nn.Embedding:
        return ("whole", "column"), module.embedding_dim
    known = type(module) in ELEMENTWISE_MODULES or n.target in ELEMENTWISE_FUNCTIONS or n.target in ELEMENTWISE_METHODS
    tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, Tensor)]
    alike = n.target in SUMS and len({tuple(x.shape) for x in tensors}) == 1
    if (known or alike) and tensors and tensors[0].dim() > 1:
        return ("whole", "through"), tensors[0].shape[-1]
    if n.target is F.scaled_dot_product_attention and tensors[0].dim() > 2:
        return ("whole", "through"), tensors[0].shape[-3]  # by heads
    if (n.target in MOVES or n.target is python.getitem) and tensors:
        return ("whole", "through"), max(tensors[0].shape)
    return ("whole",), 1


def _part(module: nn.Module | None, way: Way, members: int, args: Any) -> tuple[nn.Module, Any] | None:
    """The largest part of a divided operator, and what it is given; None: it is in proportion."""
    if type(module) is nn.Linear:
        rows, columns = -(-module.out_features // members), -(-module.in_features // members)
        make = partial(nn.Linear, bias=module.bias is not None, device=module.weight.device, dtype=module.weight.dtype)
        if way == "column":
            return make(module.in_features, rows), args
        return make(columns, module.out_features), (_fresh(args[0][..., :columns].contiguous()),)
    if type(module) is nn.Embedding:
        width = -(-module.embedding_dim // members)
        weight = module.weight
        return nn.Embedding(module.num_embeddings, width, device=weight.device, dtype=weight.dtype), args
    return None


def _fresh(x: Tensor) -> Tensor:
    """The value without its history; a copy, as it may be written into."""
    return x.detach().requires_grad_(x.requires_grad or x.is_floating_point()).clone()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _signature(n: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> str:
    shapes = [tuple(x.shape) if isinstance(x, Tensor) else str(x)[:40] for x in pytree.tree_leaves((args, kwargs))]
    return f"{module if module is not None else n.target} {shapes}"


def _owner(n: fx.Node) -> str:
    around = [str(path) for path, _ in (n.meta.get("nn_module_stack") or {}).values()]
    return str(n.target) if n.op == "call_module" else around[-1] if around else ""


def _name(n: fx.Node) -> str:
    owner = _owner(n)
    return owner if n.op == "call_module" else f"{owner}.{n.name}" if owner else n.name


def _bytes(tensors: list[Any]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
