"""What is declared of each strategy? One entry per name, family by family, in the order in which pages show them."""

from collections.abc import Mapping

from covey.catalog.entries import averaging, cached, coordinates, gossip, layers, replicated, scheduled, server, shared
from covey.strategy import Entry

FAMILIES: Mapping[str, Mapping[str, Entry]] = {
    "Parameter servers": server.ENTRIES,
    "Parameter servers with copies at the workers": cached.ENTRIES,
    "Scheduled slices": scheduled.ENTRIES,
    "Replicas in step": replicated.ENTRIES,
    "Fully connected layers": layers.ENTRIES,
    "Linear models": coordinates.ENTRIES,
    "Averaging models": averaging.ENTRIES,
    "Gossip": gossip.ENTRIES,
    "Shared memory": shared.ENTRIES,
}

__all__ = ["FAMILIES"]
