"""A real Kubernetes on one machine, for tests and development: its binaries, its certificates, its processes.

Standard library only, and nothing of the product: what is here runs before and beside it.
"""
