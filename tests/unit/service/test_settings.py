"""Settings come from the service's own variables only, and a misspelt one is refused."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import Field

from apparate.service.settings import InvalidSettings, ServiceSettings


class Settings(ServiceSettings):
    prefix: ClassVar[str] = "EEM_THING_"

    port: int = Field(default=8080, ge=0, le=65535, description="TCP port.")
    name: str = Field(description="Its name.")


def test_values_come_from_variables_with_the_prefix() -> None:
    loaded = Settings.load({"EEM_THING_PORT": "9000", "EEM_THING_NAME": "a", "PORT": "1", "THING_PORT": "2"})
    assert (loaded.port, loaded.name) == (9000, "a")


def test_a_misspelt_variable_is_refused_by_name() -> None:
    with pytest.raises(InvalidSettings, match=r"EEM_THING_PROT is not a setting; there are: EEM_THING_PORT"):
        Settings.load({"EEM_THING_PROT": "9000", "EEM_THING_NAME": "a"})


def test_a_value_beyond_its_limit_is_named_with_the_limit() -> None:
    with pytest.raises(InvalidSettings, match=r"EEM_THING_PORT is '70000'.*65535"):
        Settings.load({"EEM_THING_PORT": "70000", "EEM_THING_NAME": "a"})


def test_a_missing_value_is_named() -> None:
    with pytest.raises(InvalidSettings, match="EEM_THING_NAME"):
        Settings.load({})


def test_a_variable_that_kubernetes_injects_for_a_service_is_not_ours() -> None:
    assert Settings.load({"EEM_THING_NAME": "a", "THING_SERVICE_PORT": "tcp://10.0.0.1:80"}).port == 8080


def test_settings_cannot_be_changed() -> None:
    loaded = Settings.load({"EEM_THING_NAME": "a"})
    with pytest.raises(ValueError, match="frozen"):
        loaded.port = 1


def test_every_setting_is_described() -> None:
    assert Settings.describe() == [
        ("EEM_THING_PORT", "8080", "TCP port."),
        ("EEM_THING_NAME", "", "Its name."),
    ]
