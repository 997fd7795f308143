from __future__ import annotations

from pathlib import Path

import pytest

from apparate.service.settings import InvalidSettings
from apparate_controller.settings import ControllerSettings


def test_documents_are_separated_by_commas():
    settings = ControllerSettings.load({"EEM_CONTROLLER_DOCUMENTS": "a.yaml, b.yaml"})
    assert settings.documents == (Path("a.yaml"), Path("b.yaml"))


@pytest.mark.parametrize(
    ("name", "value"), [("DOCUMENTS", ""), ("PORT", "65536"), ("BLOCK_S", "0"), ("LOG_LEVEL", "LOUD")]
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidSettings, match=f"EEM_CONTROLLER_{name}"):
        ControllerSettings.load({"EEM_CONTROLLER_DOCUMENTS": "a.yaml", f"EEM_CONTROLLER_{name}": value})


def test_models_are_of_files_or_of_a_cluster_and_never_of_both():
    cluster = {"EEM_CONTROLLER_KUBERNETES": "true", "EEM_CONTROLLER_NAMESPACES": "a,b"}
    assert ControllerSettings.load(cluster).namespaces == ("a", "b")
    for wrong in ({}, {**cluster, "EEM_CONTROLLER_DOCUMENTS": "a.yaml"}):
        with pytest.raises(InvalidSettings, match=r"^either EEM_CONTROLLER_DOCUMENTS or EEM_CONTROLLER_KUBERNETES"):
            ControllerSettings.load(wrong)


def test_every_setting_says_what_it_is_for():
    assert all(description for _, _, description in ControllerSettings.describe())
