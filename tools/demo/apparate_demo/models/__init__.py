"""Torch models of the scenarios: modules and the entrypoints that load them. Nothing of the product imports these."""
