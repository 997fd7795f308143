"""Everything that can go wrong in the controller, as one tree.

ControllerError
├── CatalogNotReady      the model is not prepared, or its catalog cannot be used; tried again
├── FeedbackStalled      entries wait in the stream and the reader is not given them: its connection is dead
├── PlanRefused          the plan store holds a newer revision than the one to publish
├── PlanUnknown          a plan to roll back to is not in the history, or is of another catalog
└── PlanUnreadable       the newest entry of the plan store is not a plan
"""

from __future__ import annotations

from apparate.service.redis_client import UNREACHABLE, failing


class ControllerError(Exception):
    """Base of all errors of the controller; the message names the thing, the value and the limit."""


def problem_of(error: BaseException) -> str:
    """What a failure means, for people."""
    return failing(error).words if isinstance(error, UNREACHABLE) else f"{type(error).__name__}: {error}"


class CatalogNotReady(ControllerError):
    """The catalog of a prepared model is missing or invalid."""


class FeedbackStalled(ControllerError):
    """Entries wait in the stream and the reader does not get them."""


class PlanRefused(ControllerError):
    """A plan that workers would refuse, because a newer one is in force."""

    def __init__(self, revision: int, in_force: int) -> None:
        super().__init__(f"plan revision {revision} cannot be published, revision {in_force} is in force")
        self.in_force = in_force


class PlanUnknown(ControllerError):
    """A plan that cannot be rolled back to."""


class PlanUnreadable(ControllerError):
    """The newest entry of the plan store is not a plan."""
