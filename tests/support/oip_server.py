"""A small Open Inference Protocol server for tests of clients: gRPC and HTTP, answers from a function of the pixels."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from apparate_proto.inference import open_inference_pb2 as pb

RAMP, REVISION = 2, 7


def scores(values: Any) -> Any:
    """Class 1 when the mean of the input is above 127."""
    return np.array([0.0, np.mean(values) - 127.0], np.float32)


async def infer(data: bytes, context: Any) -> bytes:
    request = pb.ModelInferRequest.FromString(data)
    values = np.frombuffer(request.raw_input_contents[0], np.uint8)
    response = pb.ModelInferResponse(model_name=request.model_name)
    response.outputs.add(name="logits", datatype="FP32", shape=[1, 2])
    response.raw_output_contents.append(scores(values).tobytes())
    response.parameters["exit_ramp"].int64_param = RAMP
    response.parameters["plan_revision"].int64_param = REVISION
    return response.SerializeToString()


async def live(data: bytes, context: Any) -> bytes:
    return pb.ServerLiveResponse(live=True).SerializeToString()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            writer.write(http_answer(head, headers, body))
    except asyncio.IncompleteReadError:
        writer.close()


def http_answer(head: bytes, headers: dict[str, str], body: bytes) -> bytes:
    if head.startswith(b"GET"):
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    if b"/models/broken/" in head:
        return b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 6\r\n\r\nbroken"
    data = scores(np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.uint8)).tobytes()
    output = {"name": "logits", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": len(data)}}
    parameters = {"exit_ramp": RAMP, "plan_revision": REVISION}
    text = json.dumps({"model_name": "m", "outputs": [output], "parameters": parameters}).encode()
    start = f"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: {len(text)}\r\n"
    return start.encode() + f"Content-Length: {len(text + data)}\r\n\r\n".encode() + text + data


async def serve(pipe: Connection) -> None:
    import grpc
    import grpc.aio

    server = grpc.aio.server()
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ServerLive": grpc.unary_unary_rpc_method_handler(live),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    web = await asyncio.start_server(http, "127.0.0.1", 0)
    pipe.send({"grpc": f"127.0.0.1:{port}", "http": f"127.0.0.1:{web.sockets[0].getsockname()[1]}"})
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    web.close()
    await server.stop(0)


def main(pipe: Connection) -> None:
    asyncio.run(serve(pipe))


@contextmanager
def an_oip_server() -> Iterator[dict[str, str]]:
    """Addresses of the server by protocol; it runs in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs,), daemon=True)
    process.start()
    try:
        yield pipe.recv()
    finally:
        pipe.send(None)
        process.join(10)
