"""Differences between two documents, or between what a model was made of and what it would be: field by field. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Edit:
    """One field with another value; None: it is not there."""

    field: str
    """As errors name it: spec.model.inputs.0.shape."""
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{shown(self.before)} -> {shown(self.after)}"


def shown(value: Any) -> str:
    """A value for people."""
    text = "nothing" if value is None or value in ("", (), [], {}) else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def edits(before: Any, after: Any, field: str = "") -> Iterator[Edit]:
    """What is different in plain data, in the order of `before`, the deepest fields that are in both."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from edits(before.get(name), after.get(name), f"{field}.{name}".lstrip("."))
    elif _of_parts(before) and _of_parts(after) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from edits(one, other, f"{field}.{index}")
    else:
        yield Edit(field, before, after)


def with_edit(data: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """Plain data with one field as it is after an edit."""
    found: dict[str, Any] = _with(data, edit.field.split("."), edit.after)
    return found


def _with(data: Any, way: list[str], value: Any) -> Any:
    if not way:
        return value
    if isinstance(data, list):
        return [_with(one, way[1:], value) if str(i) == way[0] else one for i, one in enumerate(data)]
    found = {name: part for name, part in (data or {}).items() if name != way[0]}
    inner = _with((data or {}).get(way[0]), way[1:], value)
    return found if inner is None else found | {way[0]: inner}


def _of_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)
