"""What a worker does while more comes than it can serve, stage by stage, as people see it: in metrics and in the log.

The stages are taken where the work is (`batching.py`, `serving.py`); here is only noted that they were. A stage is over
when it has not been taken for a while, so that load that comes in waves is told once, not with every wave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum

from apparate.service.telemetry import get_logger

HOLD_S = 10.0  # without which a stage is over
LOOK_S = 1.0
log = get_logger(__name__)


class Stage(IntEnum):
    """In the order in which they are taken."""

    SHORT_WAITS = 0
    """A whole batch waits behind the one that starts: none waits for company."""
    EXITS_FIRST = 1
    """What is left of the way of answered rows is put off, so that whoever waits gets an answer sooner."""
    RAMPS_OFF = 2
    """No more can be put off: most passes run without ramps, which would only make the queue longer."""
    SHED_LOW = 3
    """Requests of the low class are refused, or give up their places in the queue."""
    REFUSE = 4
    """Requests of the high class are refused."""

    @property
    def label(self) -> str:
        """The stage in metrics and logs: `short_waits`."""
        return self.name.lower()


class Pressure:
    """When each stage was last taken. `note` from any thread; the rest from the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = [-float("inf")] * len(Stage)
        self._since: dict[Stage, float] = {}
        self.entered = dict.fromkeys(Stage, 0)
        """How often each stage began."""

    def note(self, stage: Stage) -> None:
        """A stage is taken now."""
        self._last[stage] = self._clock()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that are on."""
        self.look()
        return tuple(sorted(self._since))

    def look(self) -> None:
        """Tell of stages that began or are over since the last look."""
        now = self._clock()
        for stage in Stage:
            on = now - self._last[stage] < HOLD_S
            if on and stage not in self._since:
                self._since[stage] = now
                self.entered[stage] += 1
                log.warning("under pressure", stage=stage.label)
            elif not on and stage in self._since:
                lasted = self._last[stage] - self._since.pop(stage)
                log.info("pressure is over", stage=stage.label, seconds=round(max(lasted, 0.0), 1))

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)
