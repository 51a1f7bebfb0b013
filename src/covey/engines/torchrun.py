"""placeholder while the core is tested"""

from typing import Any

from covey.engines.cluster.spawned import SpawnedPlaces


def places(workers: int, hosts: Any, **settings: Any) -> SpawnedPlaces:
    return SpawnedPlaces([f"h{i}" for i in range(workers)], "127.0.0.1")
