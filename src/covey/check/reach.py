"""Does a program do anything but by its node? Its source is read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

BEYOND = {
    "time": "clocks", "datetime": "clocks", "sched": "clocks", "socket": "sockets", "select": "sockets",
    "ssl": "sockets", "http": "sockets", "urllib": "sockets", "zmq": "sockets", "threading": "threads",
    "_thread": "threads", "concurrent": "threads", "asyncio": "threads", "queue": "threads",
    "multiprocessing": "processes", "subprocess": "processes", "signal": "processes", "random": "global chance",
    "secrets": "global chance", "uuid": "global chance", "numpy.random": "global chance",
    "torch.distributed": "its own collectives", "torch.multiprocessing": "processes",
}  # fmt: skip
"""Modules that a program must leave alone, and what they reach."""

INSTEAD = {
    "clocks": "await node.now() or node.sleep(seconds)", "sockets": "await node.send(…) and node.receive(…)",
    "threads": "node.compute(…) or node.spawn(…)", "processes": "a covey.Role for each",
    "global chance": "node.rng (in a codec: a torch.Generator with its seed)",
    "its own collectives": "await node.sum(…)",
}  # fmt: skip

DRAWS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal"}
"""Of torch: without generator=… they draw from the global one."""

IMPORTS = {"__import__", "import_module"}
NAMES = {"np": "numpy", "th": "torch"}


def beyond(file: Path) -> list[str]:
    """What a file reaches past the effects, line by line, each with what to use instead."""
    tree = ast.parse(file.read_text(), str(file))
    found = sorted({(line, what, kind) for line, what, kind in _reaches(tree)})
    return [f"{file}:{line}: {what} reaches {kind}: use {INSTEAD[kind]}" for line, what, kind in found]


def _reaches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield from _module(node.lineno, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute):
            if (name := _dotted(node)) in BEYOND and "." in name:
                yield node.lineno, name, BEYOND[name]
        elif isinstance(node, ast.Call):
            yield from _draw(node)
            yield from _call(node)


def _module(line: int, name: str) -> Iterator[tuple[int, str, str]]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if (prefix := ".".join(parts[:length])) in BEYOND:
            yield line, f"import {prefix}", BEYOND[prefix]


def _call(call: ast.Call) -> Iterator[tuple[int, str, str]]:
    """An import that is written as a call."""
    match call.args:
        case [ast.Constant(value=str(name)), *_] if _dotted(call.func).split(".")[-1] in IMPORTS:
            yield from _module(call.lineno, name)


def _draw(call: ast.Call) -> Iterator[tuple[int, str, str]]:
    module, _, function = _dotted(call.func).rpartition(".")
    drawn = module == "torch" and function in DRAWS and not any(word.arg == "generator" for word in call.keywords)
    if drawn or (module == "torch" and function in ("manual_seed", "seed")):
        yield call.lineno, f"torch.{function}", "global chance"


def _dotted(node: ast.expr) -> str:
    """The name that an attribute spells; empty for what is no name."""
    if isinstance(node, ast.Name):
        return NAMES.get(node.id, node.id)
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""
