"""What every shape of the EarlyExitModel is built from: base class, rules that hold here and in the API server, types.

A rule is written once, with its CEL expression and its Python twin side by side, and both give the same message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import CoreSchema, core_schema

VALIDATIONS = "x-kubernetes-validations"
_PLACE = re.compile(r"\{([A-Za-z.]+)\}")
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$"
NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


@dataclass(frozen=True)
class Rule:
    """What must hold between the fields of one shape.

    cel      expression over `self` (and `oldSelf` for a rule about changes) for the API server
    message  what a user reads; `{fieldName}` and `{field.inner}` are filled in, only for fields that are always there
    holds    the same in Python; None for a rule that only makes sense in a cluster
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None

    def text(self, value: Any) -> str:
        """The message with the values of a shape, or with the `{self}` of a plain value."""

        def shown(found: re.Match[str]) -> str:
            at: Any = value
            for part in found[1].split("."):
                at = at if part == "self" else getattr(at, to_snake(part))
            return f"{at:g}" if isinstance(at, float) else str(at)

        return _PLACE.sub(shown, self.message)

    def to_schema(self) -> dict[str, Any]:
        """An entry of x-kubernetes-validations."""
        if not _PLACE.search(self.message):
            return {"rule": self.cel, "message": self.message}
        paths = [path if path == "self" else f"self.{path}" for path in _PLACE.findall(self.message)]
        template = _quoted(_PLACE.sub("%s", self.message.replace("%", "%%")))
        # `+` and string() would be over the API server's cost budget, which cannot bound the length of their results
        return {"rule": self.cel, "messageExpression": f"{template}.format([{', '.join(paths)}])"}

    def check(self, value: Any) -> Any:
        """`value` when the rule holds for it here. Raises ValueError with the message."""
        if self.holds is not None and not self.holds(value):
            raise ValueError(self.text(value))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As annotation of a plain value."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), VALIDATIONS: [self.to_schema()]}


def _quoted(text: str) -> str:
    """A CEL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Shape(BaseModel):
    """A part of the document: camelCase outside, frozen, unknown fields refused, its rules checked."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Any:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        if cls.rules:
            handler.resolve_ref_schema(found)[VALIDATIONS] = [rule.to_schema() for rule in cls.rules]
        return found


class StatusShape(Shape):
    """A part of the status: a field that a newer writer added is no reason to fail."""

    model_config = ConfigDict(extra="ignore")


class OpenShape(Shape):
    """A part that Kubernetes defines: passed on as it is, only the fields named here are checked."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class ListMap:
    """A list whose items differ in `key`: merged by it in server-side apply, a second item of a key is refused."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._differ, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _differ(self, items: tuple[BaseModel, ...]) -> tuple[BaseModel, ...]:
        keys = [getattr(item, to_snake(self.key)) for item in items]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{self.key} {key} is there twice")
        return items


def problem_of(error: ValidationError) -> str:
    """The first thing that is wrong, as `field.inner: words`; without a field when the whole is meant."""
    first = error.errors()[0]
    where, said = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Ratio = Annotated[float, Field(ge=0, le=1)]
Word = Annotated[str, Field(max_length=253)]
Secret = Annotated[str, Field(pattern=NAME, max_length=253)]
Quantity = Annotated[
    str,
    BeforeValidator(_text),
    Field(pattern=QUANTITY, max_length=32),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "pattern": QUANTITY,
            "maxLength": 32,
        }
    ),
]
Opaque = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": True})]
