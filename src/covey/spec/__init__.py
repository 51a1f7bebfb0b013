"""How is a strategy written?"""

from covey.spec.call import Call, Grid, Made, Scalar, Spec, SpecError, Value, expand, unknown
from covey.spec.reader import parse, parse_call, parse_list
from covey.spec.settings import bind

__all__ = [
    "Call",
    "Grid",
    "Made",
    "Scalar",
    "Spec",
    "SpecError",
    "Value",
    "bind",
    "expand",
    "parse",
    "parse_call",
    "parse_list",
    "unknown",
]
