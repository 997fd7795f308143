"""The method: pure functions of windows, plans and catalogs.

numpy and the standard library only. No clock, no log, no I/O, no randomness that is not an argument.
"""
