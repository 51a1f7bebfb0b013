"""Flower's SecAgg+ (SecAgg: all with all): the CPU time in which one client masks its numbers. It needs flwr only.

    PYTHON flower_masking.py CLIENTS NUMBERS REPEATS

Its own function is timed, as its client calls it: shares opened, numbers quantised, a mask for every other client.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

flower = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # a function of that name hides it


def state(clients: int) -> tuple[Any, ConfigRecord]:
    """A client that has everybody's keys, and what the server delivers to it then."""
    pairs = [generate_key_pairs() for _ in range(clients)]
    mine, others = pairs[0], range(1, clients)
    agreed = {other: flower.generate_shared_key(mine[0], pairs[other][1]) for other in others}
    made = flower.SecAggPlusState(
        nid=0, threshold=2 * clients // 3, clipping_range=8.0, target_range=1 << 22, mod_range=1 << 32,
        max_weight=1000.0, sk1=private_key_to_bytes(mine[0]), rd_seed=bytes(range(32)),
    )  # fmt: skip
    made.rd_seed_share_dict, made.sk1_share_dict, made.ss2_dict = {}, {}, agreed
    made.public_keys_dict = {other: (public_key_to_bytes(pairs[other][1]),) * 2 for other in others}
    boxes = [encrypt(agreed[one], share_keys_plaintext_concat(one, 0, bytes(48), bytes(48))) for one in others]
    return made, ConfigRecord({Key.CIPHERTEXT_LIST: boxes, Key.SOURCE_LIST: list(others)})


def main() -> None:
    clients, numbers, repeats = map(int, sys.argv[1:])
    client, delivered = state(clients)
    update = ndarrays_to_parameters([np.random.default_rng(1).standard_normal(numbers).astype(np.float32)])
    spent = []
    for _ in range(repeats):
        before = time.process_time()
        flower._collect_masked_vectors(client, delivered, 100, update)
        spent.append(time.process_time() - before)
    print(json.dumps(spent))


if __name__ == "__main__":
    main()
