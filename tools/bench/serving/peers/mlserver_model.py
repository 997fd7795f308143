"""A runtime of MLServer's with the network of the benchmark."""

from __future__ import annotations

import base64

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput
from networks import network


class Served(MLModel):
    """One model."""

    async def load(self) -> bool:
        """Make the network."""
        self._network = network()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One request, or several that MLServer has made one of."""
        scores = self._network({one.name: _array(one) for one in payload.inputs})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", scores)])


def _array(one: RequestInput) -> np.ndarray:
    if one.datatype == "BYTES":  # base64 of pixels
        rows = [np.frombuffer(base64.b64decode(row), np.uint8) for row in one.data]
        return np.stack(rows).reshape(-1, 96, 96, 3)
    return NumpyCodec.decode_input(one)
