"""Where strategies differ from "one compute a step, every sample once": what they declare, by name."""

from __future__ import annotations

PARTS = {"a_bsp": 4, "specsync": 4, "gradient_coding": 2, "sandblaster": 1, "halp": 2, "one_weird_trick": 6}
"""How many computes make a step, where speeds decide how many there are in the end; their own tests count them."""

LACKS = {"a_bsp"}
"""Slow workers see fewer samples than asked for: supersteps end with the first."""

EPOCHS = {"sandblaster": 40}
"""How many epochs to 95 % are still learning, where 20 are not enough: batch L-BFGS makes one move per epoch."""
