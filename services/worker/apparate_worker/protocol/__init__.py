"""The Open Inference Protocol, version 2: two thin faces, HTTP and gRPC, over one dataplane.

Only here are bytes of clients read. Nothing here knows of segments, ramps or Redis.
"""
