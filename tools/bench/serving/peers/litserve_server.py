"""LitServe with the network of the benchmark."""

from __future__ import annotations

import os
from typing import Any

import litserve
from networks import decode, encode, network, together


class Served(litserve.LitAPI):
    """One model."""

    def setup(self, device: str) -> None:
        """Make the network."""
        self._network = network()

    def decode_request(self, request):  # LitServe reads the annotations: without any it hands over JSON as it came
        """Arrays of a v2 request."""
        return decode(request)

    def batch(self, inputs: list[Any]) -> Any:
        """One batch of several requests."""
        return together(inputs)

    def unbatch(self, output: Any) -> Any:
        """The answers one by one."""
        return [output[i : i + 1] for i in range(len(output))]

    def predict(self, x: Any) -> Any:
        """Scores."""
        return self._network(x)

    def encode_response(self, output):
        """A v2 answer."""
        return encode(output)


if __name__ == "__main__":
    size = int(os.environ["BENCH_BATCH"])
    api = Served(max_batch_size=size, batch_timeout=float(os.environ.get("BENCH_WAIT_S", "0.001")) if size > 1 else 0.0)
    fast = os.environ.get("BENCH_FAST", "") == "1"
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=fast)
    quiet = {"log_level": "warning", "access_log": False, "generate_client_file": False}
    server.run(host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), num_api_servers=1, **quiet)
