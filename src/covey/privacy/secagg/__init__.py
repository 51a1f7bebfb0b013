"""How is a sum taken that shows no summand? Secure aggregation (Bonawitz et al. 2017; Bell et al. 2020)."""

from covey.privacy.secagg.client import SumClient
from covey.privacy.secagg.fixed_point import FixedPoint
from covey.privacy.secagg.round_keys import Identity
from covey.privacy.secagg.server import SumOutcome, SumServer
from covey.privacy.secagg.terms import sum_terms

__all__ = ["FixedPoint", "Identity", "SumClient", "SumOutcome", "SumServer", "sum_terms"]
