"""Mosec with the network of the benchmark."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mosec import Server, Worker
from networks import decode, encode, network, together

RAW = os.environ.get("BENCH_RAW") == "1"
BATCH = int(os.environ["BENCH_BATCH"])


class Served(Worker):
    """One model."""

    def __init__(self) -> None:
        super().__init__()
        self._network = network()

    def deserialize(self, data: bytes) -> Any:
        """Arrays of a v2 request in JSON, or pixels as they are."""
        if RAW:
            return {"image": np.frombuffer(data, np.uint8).reshape(1, 96, 96, 3).copy()}
        return decode(super().deserialize(data))

    def forward(self, data: Any) -> Any:
        """Answers of a request, or of several."""
        if BATCH == 1:
            return encode(self._network(data))
        scores = self._network(together(data))
        return [encode(scores[i : i + 1]) for i in range(len(data))]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Served, num=1, max_batch_size=BATCH, max_wait_time=1)
    server.run()
