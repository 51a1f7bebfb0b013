"""A model behind Ray Serve:  PYTHON ray_serve.py MODEL PORT BATCH REPLICAS"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from served_models import seeded

WAIT = 0.001  # seconds for which a batch waits for more requests
BATCH, REPLICAS = int(sys.argv[3]), int(sys.argv[4])


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Served:
    """The model, with the batching that Ray Serve has."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self.model = seeded(name)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)  # type: ignore[untyped-decorator]
    async def predict(self, inputs: list[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            return list(self.model(torch.stack(inputs)))

    async def __call__(self, request: Any) -> dict[str, Any]:
        found = await self.predict(torch.tensor((await request.json())["input"]))
        return {"output": found.tolist()}


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Served.bind(sys.argv[1]), route_prefix="/predict", logging_config={"enable_access_log": False})
    signal.pause()
