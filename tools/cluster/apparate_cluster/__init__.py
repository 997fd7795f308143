"""A real Kubernetes on one machine, for tests and development: its binaries, its certificates, its processes.

Nothing of the product: what is here runs before and beside it. Standard library only, but for two processes in `node`.
"""
