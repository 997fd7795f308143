"""One frozen settings object per service, read once in its __main__."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BeforeValidator, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


COMMA_SEPARATED = (NoDecode, BeforeValidator(_split))
"""Annotations of a setting that is a tuple, given as one text with commas."""


def own_name() -> str:
    """What a process is called that was given no name."""
    return f"{socket.gethostname()}-{os.getpid()}"


class InvalidSettings(ValueError):
    """Settings that cannot be used; the message names the variable, the value and the limit."""


class ServiceSettings(BaseSettings):
    """Settings from environment variables with the service's own prefix; a misspelt name is refused, not ignored."""

    prefix: ClassVar[str]
    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Settings from `environ` (the process's own by default). Raises InvalidSettings."""
        environ = os.environ if environ is None else environ
        values = {k[len(cls.prefix) :].lower(): v for k, v in environ.items() if k.startswith(cls.prefix)}
        unknown = sorted(k for k in values if k.split("__")[0] not in cls.model_fields)
        if unknown:
            allowed = ", ".join(f"{cls.prefix}{name.upper()}" for name in cls.model_fields)
            raise InvalidSettings(f"{cls.prefix}{unknown[0].upper()} is not a setting; there are: {allowed}")
        try:
            return cls(**{**values, **overrides})
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # a rule between several of them, whose message names them
                raise InvalidSettings(first["msg"].removeprefix("Value error, ")) from None
            name = cls.prefix + "_".join(str(part) for part in first["loc"]).upper()
            raise InvalidSettings(f"{name} is {first.get('input')!r}: {first['msg']}") from None

    @classmethod
    def describe(cls) -> list[tuple[str, str, str]]:
        """(variable, default, description) of every setting, for documentation."""
        return [
            (
                f"{cls.prefix}{name.upper()}",
                "" if field.is_required() else str(field.get_default(call_default_factory=True)),
                field.description or "",
            )
            for name, field in cls.model_fields.items()
        ]
