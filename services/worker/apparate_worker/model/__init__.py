"""Torch graph tooling: load a model, find where ramps may sit, cut it there, and keep the result in a folder.

Nothing here knows a model's name, serves a request or reads a plan.
"""
