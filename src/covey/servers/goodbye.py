"""How a role leaves."""

from __future__ import annotations

from covey.message import Message


class Goodbye(Message):
    """Nothing more comes from the sender: all that it has sent came before this."""

    wire_name = "servers.goodbye"
    formerly = (
        "aggressive.leave_supersteps", "cache.retire", "cache.retired", "coded.leave_coded", "delayed.leave",
        "elastic.depart", "gossip.farewell", "lbfgs.close_shard", "lbfgs.leave_batches", "parting.leaving",
        "sandblaster.no_more", "shard.leave", "sliced.slice_done", "slices.finished", "sparknet.finished", "store.gone",
        "value_bound.leave_view", "value_bound.view_closed",
    )  # fmt: skip
    counted = False
