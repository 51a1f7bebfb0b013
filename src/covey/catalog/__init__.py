"""What is it called? The entries of all names, and the way from a SPEC to a plan's strategy."""

from covey.catalog.entries import FAMILIES
from covey.catalog.resolving import STRATEGIES, chosen, codec, for_any_model, names, register, resolve, search

__all__ = ["FAMILIES", "STRATEGIES", "chosen", "codec", "for_any_model", "names", "register", "resolve", "search"]
