"""What an edit of a document would do to the model that a cluster has: field by field, by what the operator makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from apparate.contract.edits import Edit, edits, with_edit
from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision

Json = dict[str, Any]


class Effect(StrEnum):
    """What has to happen before an edit is in force."""

    PREPARES = "prepared anew, then workers are replaced; what is prepared now serves until then"
    RESTARTS = "workers are replaced as spec.serving.rollout says"
    NONE = "in force without a restart"


@dataclass(frozen=True)
class Effective:
    """An edit and its effect."""

    edit: Edit
    effect: Effect


def effects(live: Json, wanted: EarlyExitModel) -> Iterator[Effective]:
    """Each field of the spec that differs from an object's. Raises ValidationError for one that cannot be read."""
    present = EarlyExitModel.model_validate({name: part for name, part in live.items() if name != "status"})
    before, after = ({"spec": one.spec.model_dump(mode="json", by_alias=True)} for one in (present, wanted))
    for edit in edits(before, after):
        yield Effective(edit, _effect(present, before, after, edit))


def _effect(present: EarlyExitModel, before: Json, after: Json, edit: Edit) -> Effect:
    """Of one edit alone; of all of them when no document could have it without the others."""
    back = Edit(edit.field, edit.after, edit.before)
    for old, new in ((before, with_edit(before, edit)), (with_edit(after, back), after), (before, after)):
        try:
            return _between(*(present.model_copy(update={"spec": _spec(present, one)}) for one in (old, new)))
        except ValidationError:
            continue
    return Effect.PREPARES  # unheard of: the worst, to be told too much rather than too little


def _spec(present: EarlyExitModel, data: Json) -> Any:
    return type(present.spec).model_validate(data["spec"])


def _between(old: EarlyExitModel, new: EarlyExitModel) -> Effect:
    if revision(old.spec) != revision(new.spec):
        return Effect.PREPARES
    return Effect.NONE if _pods(old) == _pods(new) else Effect.RESTARTS


def _pods(model: EarlyExitModel) -> Any:
    """What the operator asks of the workers' pods; a change of it replaces them."""
    from apparate_operator.manifests.common import Environment
    from apparate_operator.manifests.worker import deployment

    return deployment(model, Environment("its own"), revision="present", replicas=None)["spec"]["template"]
