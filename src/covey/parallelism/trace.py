"""A model as a graph of what its forward does, in order: by its nn.Sequential, by torch.fx, or by torch.export."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from covey.errors import PlanError
from covey.model.randomness import seed_torch
from covey.parallelism.marks import MARKS, listening

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """What a forward does, node by node; `root` holds the modules and tensors that the nodes name."""

    root: nn.Module
    graph: fx.Graph
    spec: pytree.TreeSpec  # how the model's output is put together from what the graph gives
    way: str  # "sequential", "fx" or "export"
    notes: list[str] = field(default_factory=list)

    def run(self, inputs: Inputs) -> list[Any]:
        """What the graph gives, flat."""
        return pytree.tree_leaves(fx.GraphModule(self.root, self.graph)(*inputs))

    def rebuild(self, given: Sequence[Any]) -> Any:
        """The model's own output, from what the graph gives."""
        return pytree.tree_unflatten(list(given), self.spec)


def traced(model: nn.Module, inputs: Inputs, cuts: Sequence[str] = (), inside: bool = False) -> Traced:
    """The model's graph, held against the model itself on these inputs, whole and halved.

    An nn.Sequential is looked into only where marks, or the names in `cuts`, lie inside its modules, or on demand.
    """
    expected, marks = _answer(model, inputs)
    looked = inside or marks or len(inputs) != 1
    sequential = _sequential(model) if not looked and _is_sequential(model) else None
    if sequential is not None and not all(_between(sequential.graph, name) for name in cuts):
        sequential = None
    found = sequential or _by_fx(model, inputs)
    seen = sum(node.target in MARKS for node in found.graph.nodes)
    if seen < marks:
        raise PlanError(
            f"{marks - seen} of {marks} marks of cut_here lie in modules that are kept whole "
            f"({'; '.join(found.notes)}): mark around them, not inside"
        )
    if sequential is None:
        _check(model, found, inputs, expected)
    return found


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """A model may be run here: its buffers and torch's random numbers are afterwards what they were."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices={p.device for p in model.parameters() if p.device.type == "cuda"}):
        seed_torch(0)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(kept[name])


def _answer(model: nn.Module, inputs: Inputs) -> tuple[list[Any], int]:
    with undisturbed(model), listening() as heard, torch.no_grad():
        return pytree.tree_leaves(model(*_copies(inputs))), len(heard)


def _copies(inputs: Inputs) -> Inputs:
    """Some models write into what they are given."""
    return tuple(x.clone() for x in inputs)


def _is_sequential(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks
    return type(module).forward is nn.Sequential.forward and not hooks


def _sequential(model: nn.Module) -> Traced:
    """An nn.Sequential needs no tracing: whatever its modules do, it can be cut between them."""
    graph = fx.Graph()
    value = graph.placeholder("input")

    def add(module: nn.Module, path: str) -> None:
        nonlocal value
        for name, child in module._modules.items():  # named_children() leaves out what comes a second time
            here = f"{path}.{name}" if path else name
            if child is not None and _is_sequential(child):
                add(child, here)
            else:
                value = graph.call_module(here, (value,))

    add(model, "")
    graph.output(value)
    return Traced(root=model, graph=graph, spec=pytree.tree_structure(0), way="sequential")


def _between(graph: fx.Graph, name: str) -> bool:
    """Whether a module's end is the end of a node, so that there is no need to look into any."""
    return any(f"{node.target}.".startswith(f"{name}.") for node in graph.nodes)


class _Tracer(fx.Tracer):
    """torch.fx, which keeps some modules whole and remembers where it was."""

    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self.whole, self.inside = whole, [""]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.inside.append(self.path_of_module(m))
        result = super().call_module(m, forward, args, kwargs)
        self.inside.pop()  # not after an exception: then the last one is where it happened
        return result


def _by_fx(model: nn.Module, inputs: Inputs) -> Traced:
    """By torch.fx. A module whose forward it cannot follow is kept whole; if that is the model itself, by export."""
    names = list(inspect.signature(model.forward).parameters.values())
    usual = {p.name: p.default for p in names[len(inputs) :] if p.default is not p.empty}
    whole: dict[str, str] = {}
    while True:
        tracer = _Tracer(set(whole))
        try:
            graph = tracer.trace(model, concrete_args=usual)
        except Exception as error:
            if not tracer.inside[-1] or tracer.inside[-1] in whole:
                return _by_export(model, inputs, error)
            whole[tracer.inside[-1]] = _where(error)
            continue
        _drop_constants(graph, len(inputs))
        spec = pytree.tree_structure(graph.output_node().args[0])
        notes = [f"{name} is kept whole: {why}" for name, why in whole.items()]
        return Traced(root=model, graph=graph, spec=spec, way="fx", notes=notes)


def _drop_constants(graph: fx.Graph, inputs: int) -> None:
    """Arguments that were left at their defaults are no inputs, and what only checks them is no step."""
    unused = [node for node in graph.nodes if node.op == "placeholder"][inputs:]
    for node in unused:
        unused += [user for user in node.users if user not in unused]
    for node in [node for node in reversed(graph.nodes) if node in unused]:
        graph.erase_node(node)


def _by_export(model: nn.Module, inputs: Inputs, fault: Exception) -> Traced:
    """By torch.export, where sizes are numbers, so that a forward may ask for them."""
    from torch.export import Dim, export

    try:
        program = export(model, _copies(inputs), dynamic_shapes=tuple({0: Dim.AUTO} for _ in inputs))
    except Exception as error:
        raise PlanError(
            f"{type(model).__name__} cannot be cut: {_where(fault)}; torch.export: {_first_line(error)} "
            "Put what depends on the data into a module of its own, which is then kept whole, and cut around it; or "
            "make the model an nn.Sequential, which is cut between its modules whatever they do"
        ) from fault
    root = program.module()
    assert isinstance(root, fx.GraphModule)
    for node in [n for n in root.graph.nodes if n.target == "_guards_fn"]:
        root.graph.erase_node(node)
    assert program.call_spec.out_spec is not None
    notes = [f"traced by torch.export, in the mode it is trained in: {_where(fault)}"]
    return Traced(root=root, graph=root.graph, spec=program.call_spec.out_spec, way="export", notes=notes)


def _where(error: Exception) -> str:
    """What torch said, and the line of the user's code that made it say so."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].line}): " if frames else ""
    return place + _first_line(error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _check(model: nn.Module, found: Traced, inputs: Inputs, expected: list[Any]) -> None:
    """Hold the graph against the model: what was drawn or decided while it was traced must not have become fixed."""
    half = tuple(x[: len(x) // 2] if x.dim() else x for x in inputs)
    trials = [(inputs, expected)]
    if all(x.dim() and len(x) >= 4 for x in inputs):
        trials.append((half, _answer(model, half)[0]))
    for given, right in trials:
        with undisturbed(model), torch.no_grad():
            try:
                got = found.run(_copies(given))
            except Exception as error:
                raise _unlike(model, found, given, _first_line(error)) from error
        if len(got) != len(right) or not all(map(_same, got, right)):
            raise _unlike(model, found, given, "the numbers differ")


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    return one == other


def _unlike(model: nn.Module, found: Traced, given: Inputs, why: str) -> PlanError:
    return PlanError(
        f"{type(model).__name__} cannot be cut: its graph ({found.way}) does not do what the model does on a batch of "
        f"{len(given[0])} ({why}); chance, batch sizes or attributes may have become fixed. Put that part into a "
        "module of its own inside an nn.Sequential, where it is kept whole"
    )
