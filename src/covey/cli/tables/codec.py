"""All about one codec, or about what may be put around one, as `covey strategies CODEC` shows it."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from inspect import cleandoc
from typing import Any, get_type_hints

import torch

from covey import catalog, compose
from covey.cli.tables.ranges import allowed
from covey.exchange.codecs.by_name import CODECS, WRAPPERS
from covey.model.flat import Form
from covey.spec import bind, parse

WITH, AROUND = "bsp", "topk"  # a strategy that takes every codec, and a codec that a wrapper is shown around
SIDE = 1024  # of the matrix whose bytes are counted
FEEDBACK = {
    "none": "not needed: what arrives is right on average, or nearly exact",
    "needed": "covey carries what it drops into the next step",
    "own": "it carries what it drops into the next step itself",
}
MOMENTUM = {
    "own": "it applies momentum itself: use an optimizer without",
    "reset": "the optimizer's, of values that were sent, is reset",
}


def described(name: str) -> bool:
    """Whether this is the name of a codec or of a wrapper, with or without settings."""
    spec = parse(name)
    return spec.strategy.name in {**CODECS, **WRAPPERS} and not (spec.codecs or spec.topology or spec.mesh)


def describe(name: str, workers: int) -> dict[str, Any]:
    """All that is known of it, as it goes to JSON."""
    call = parse(name).strategy
    wraps, kind = call.name in WRAPPERS, {**CODECS, **WRAPPERS}[call.name]
    if not call.settings and (example := getattr(kind, "example", "")):  # it cannot be without settings
        name, call = example, parse(example).strategy
    spec = f"{WITH} + {name} + {AROUND}" if wraps else f"{WITH} + {name}"
    codec = catalog.resolve(spec, workers).composition.codec
    given, hints = bind(call, kind, "codec", name), get_type_hints(kind)
    form = Form.matrix(torch.zeros(SIDE * SIDE), SIDE)
    return {
        "name": call.name,
        "spec": spec,
        "about": cleandoc(kind.__doc__ or ""),
        "wraps": wraps,
        "settings": {
            field.name: {
                "default": None if field.default is MISSING else field.default, "value": getattr(given, field.name),
                "allowed": allowed(spec, call.name, field.name, hints[field.name], workers),
            }
            for field in fields(kind)
        },
        "bits": None if codec.traits.measured else codec.nbytes(form) * 8 / form.like.numel,
        "adds_up": codec.adds_up,
        "traits": asdict(codec.traits),
        "strategies": [
            one for one, entry in catalog.STRATEGIES.items() if (AROUND if wraps else call.name) in compose.names(entry)
        ],
    }  # fmt: skip


def rows(told: dict[str, Any], settings: str) -> list[tuple[str, str]]:
    """The same in words."""
    traits, around = told["traits"], f", around {AROUND}" if told["wraps"] else ""
    known = (
        [
            (f"bits{around}", f"{told['bits']:.3g} for each number, of a matrix of {SIDE} x {SIDE}"),
            ("sums", "are made of what travels" if told["adds_up"] else "are made of what was decoded"),
            ("error feedback", FEEDBACK[traits["feedback"]]),
            ("encodes", "gradients, changes and weights" if traits["weights"] else "gradients and changes"),
        ]
        if told["bits"] is not None
        else []
    )  # it chooses one of the others
    return [
        ("about", told["about"]),
        ("settings", settings or "none"),
        *known,
        *([("servers", "hold whole parameters: it uses their shapes")] if traits["shapes"] else []),
        *([("momentum", MOMENTUM[traits["momentum"]])] if traits["momentum"] in MOMENTUM else []),
        ("goes with", ", ".join(told["strategies"])),
    ]
