"""The chart says what the code says: its pages, its values, the settings it sets, its version."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from apparate.contract.resource import EarlyExitModel
from apparate.service.settings import ServiceSettings
from apparate_controller.settings import ControllerSettings
from apparate_operator.kinds import CHILDREN, WATCHED
from apparate_operator.manifests.access import prepare_access, worker_access
from apparate_operator.manifests.common import Environment
from apparate_operator.settings import OperatorSettings
from apparate_operator.start import rights

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "apparate"
TEMPLATES = "\n".join(p.read_text() for p in sorted((CHART / "templates").rglob("*")) if p.is_file())
# Set by hand where they are wanted (extraEnv), because their defaults are what pods need.
LEFT_OUT: dict[type[ServiceSettings], set[str]] = {
    OperatorSettings: {"kubeconfig", "lease_seconds", "watch_seconds", "workers"},
    ControllerSettings: {"kubeconfig", "documents", "block_s", "niceness", "retry_s", "stuck_s"},
}


def readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "charts" / "generate" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_readme_and_schema_are_what_the_values_say() -> None:
    stale = [name for name, text in readme().render().items() if (ROOT / name).read_text() != text]
    assert not stale, "run `make generate` and commit"


def test_a_key_without_a_sentence_is_named() -> None:
    module = readme()
    with pytest.raises(module.Undescribed, match=r"line 4: a\.c"):
        list(module.described("a:\n  # -- Said.\n  b: 1\n  c: 2\n"))


def test_a_sentence_without_a_key_is_named() -> None:
    module = readme()
    with pytest.raises(module.Undescribed, match="Of nothing"):
        list(module.described("# -- Said.\na: 1\n# -- Of nothing.\n"))


def test_every_value_is_read_by_a_template() -> None:
    module = readme()
    unread = [
        ".".join(value.path)
        for value in module.described((CHART / "values.yaml").read_text())
        if not re.search(rf"\.{value.path[-1]}\b|\"{value.path[-1]}\"", TEMPLATES)
    ]
    assert unread == []


@pytest.mark.parametrize("settings", [OperatorSettings, ControllerSettings], ids=lambda s: s.__name__)
def test_the_chart_sets_the_settings_there_are(settings: type[ServiceSettings]) -> None:
    in_chart = {name.lower() for name in re.findall(rf"\b{settings.prefix}([A-Z0-9_]+)\b", TEMPLATES)}
    assert in_chart == set(settings.model_fields) - LEFT_OUT[settings]


def granted(component: str) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of the rules that the chart gives a component in each namespace."""
    text = (CHART / "templates" / component / "_rules.tpl").read_text()
    body: str = re.search(r"rules\" -}}\n(.*){{- end -}}", text, re.DOTALL)[1]  # type: ignore[index]
    rules = yaml.safe_load(re.sub(r"^{{-.*}}$", "", body, flags=re.MULTILINE))  # with everything that has a condition
    parts = ("apiGroups", "resources", "verbs")
    return {right for rule in rules for right in itertools.product(*(rule[part] for part in parts))}


def test_the_operator_gets_the_rights_that_it_checks_at_its_start_and_no_more() -> None:
    everything = Environment("w", redis_url="redis://r", apis=frozenset(kind.group_needed for kind in CHILDREN))
    needed = {
        (kind.group, kind.plural, verb)
        for verbs, kinds in rights(everything).items()
        for kind in kinds
        for verb in verbs.split()
    }
    watched = {(kind.group, kind.plural, "watch") for kind in WATCHED}
    beside = {
        ("", "events", "create"),
        ("", "events", "list"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
    }
    assert granted("operator") == needed | watched | beside


def test_whoever_makes_roles_has_all_that_these_grant() -> None:
    model = EarlyExitModel.model_validate(yaml.safe_load((ROOT / "examples" / "vision.yaml").read_text()))
    made = [*worker_access(model), *prepare_access(model, "a-catalog")]
    rules = [rule for body in made if body["kind"] == "Role" for rule in body["rules"]]
    asked = {
        right for rule in rules for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }
    assert asked <= granted("operator")  # else the API server refuses to let it make them


def test_the_chart_has_the_version_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == chart["version"] == project["version"]
