"""Policies that papers compare with, one file each; the same shape as the default, for replay and benchmarks."""
