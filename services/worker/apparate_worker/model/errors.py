"""What can be wrong with a model, its data or its prepared folder; every message names the thing."""

from __future__ import annotations


class ModelError(ValueError):
    """Base of everything that loading, cutting or preparing a model refuses."""


class InvalidSource(ModelError):
    """The model cannot be loaded: file, digest, entrypoint or format."""


class UnsupportedModel(ModelError):
    """A task that is not served, or a model that loads but whose graph cannot be traced or cut."""


class InvalidBootstrap(ModelError):
    """The bootstrap data cannot be used."""


class InvalidPrepared(ModelError):
    """A prepared folder that is missing, half-written or changed since it was written."""


class NotEnoughMemory(ModelError):
    """A model that cannot fit into the memory that is left."""


class InvalidProfile(ModelError):
    """Measured latencies that cannot be true of one pass."""
