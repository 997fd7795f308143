"""The step before serving: sites found, ramps trained on the frozen model, latencies measured, one folder written.

Nothing here answers a request.
"""

from apparate_worker.prepare.run import prepare

__all__ = ["prepare"]
