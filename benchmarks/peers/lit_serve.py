"""A model behind LitServe:  PYTHON lit_serve.py MODEL PORT BATCH API_SERVERS FAST_QUEUE"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import litserve
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from served_models import seeded

WAIT = 0.001  # seconds for which a batch waits for more requests


class Served(litserve.LitAPI):  # type: ignore[misc]  # litserve is in no environment of covey's
    """The model, with the batching that LitServe has."""

    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.model = seeded(sys.argv[1])

    def decode_request(self, request) -> Tensor:  # type: ignore[no-untyped-def]  # an annotation would be a schema
        return torch.tensor(request["input"])

    def batch(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack(inputs)

    def predict(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.model(x)

    def unbatch(self, output: Tensor) -> list[Tensor]:
        return list(output)

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        return {"output": output.tolist()}


if __name__ == "__main__":
    _, _, port, size, servers, fast = sys.argv
    api = Served(max_batch_size=int(size), batch_timeout=WAIT)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=fast == "True")
    server.run(
        host="127.0.0.1", port=int(port), num_api_servers=int(servers), log_level="critical", access_log=False,
        generate_client_file=False,
    )  # fmt: skip
