"""KServe's model server with the network of the benchmark, as its documentation shows it; per-request logs are off."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from networks import network


class Served(Model):
    """One model; KServe's batching is another container, so it takes requests one by one."""

    def load(self) -> bool:
        """Make the network."""
        self._network = network()
        self.ready = True
        return True

    def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """One request."""
        scores = self._network({one.name: np.array(one.as_numpy()) for one in payload.inputs})
        output = InferOutput("logits", list(scores.shape), "FP32")
        output.set_data_from_numpy(scores, binary_data=False)
        return InferResponse(payload.id or "", self.name, [output])


if __name__ == "__main__":
    model = Served("model")
    model.load()
    logging.getLogger("uvicorn.access").disabled = True
    server = ModelServer(
        http_port=int(os.environ["BENCH_PORT"]), workers=1, enable_grpc=False, enable_latency_logging=False
    )
    server.start([model])
