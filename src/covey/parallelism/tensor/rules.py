"""What is known of torch's functions on divided values, by their names."""

from __future__ import annotations

from collections.abc import Mapping

from covey.parallelism.tensor.elementwise import ELEMENTWISE
from covey.parallelism.tensor.group import Rule
from covey.parallelism.tensor.losses import LOSSES
from covey.parallelism.tensor.products import PRODUCTS
from covey.parallelism.tensor.spatial import SPATIAL
from covey.parallelism.tensor.views import VIEWS

RULES: Mapping[str, Rule] = {**ELEMENTWISE, **VIEWS, **PRODUCTS, **SPATIAL, **LOSSES}
