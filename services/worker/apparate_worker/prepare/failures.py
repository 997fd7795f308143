"""Why a preparation in a cluster failed, in the words of conditions."""

from __future__ import annotations

import errno

from apparate.contract.conditions import Reason
from apparate_worker.model.errors import ModelError

FINAL, AGAIN = 2, 1
"""Exit statuses: trying again cannot help; it may."""


class PrepareFailure(Exception):
    """What ends a preparation: a reason for the condition, a sentence, and whether trying again may help."""

    def __init__(self, reason: Reason | str, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.reason, self.passing = str(reason), passing

    @property
    def status(self) -> int:
        """Exit status of the process."""
        return AGAIN if self.passing else FINAL


def failure_of(error: Exception) -> PrepareFailure:
    """What any error means for the preparation."""
    if isinstance(error, PrepareFailure):
        return error
    if isinstance(error, ModelError):
        differs = "SHA-256" in str(error)
        return PrepareFailure(Reason.SOURCE_DIFFERS if differs else Reason.PREPARE_FAILED, str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"the store is full ({error}): raise spec.storage.pvc.size, or that of the claim named there"
        return PrepareFailure(Reason.STORAGE_FULL, text, passing=True)
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        text = f"the store cannot be written ({error}): check the claim's access mode and fsGroup of the pod template"
        return PrepareFailure(Reason.STORAGE_REFUSED, text)
    return PrepareFailure(Reason.PREPARE_FAILED, f"{type(error).__name__}: {error}", passing=True)
