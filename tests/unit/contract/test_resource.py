"""What local mode takes and refuses is what the API server does: tests/cluster/test_resource_schema.py has the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apparate.contract.document import InvalidDocument, parse_documents
from apparate.contract.pods import Gpu
from apparate.contract.resource import EarlyExitModel, Status
from apparate.contract.schema import structural_schema
from apparate.contract.shape import VALIDATIONS
from apparate.contract.source import scheme
from apparate.plan import Plan
from support.resources import LIMITS, MINIMAL, RULES, SHRUNK, STATUS, STATUS_REFUSED, TAKEN, Case

ROOT = Path(__file__).resolve().parents[3]
CASES = [pytest.param(case, id=name) for name, case in {**RULES, **LIMITS, **TAKEN}.items()]


@pytest.mark.parametrize("case", CASES)
def test_local_mode_takes_and_refuses_what_the_api_server_does(case: Case) -> None:
    text = yaml.safe_dump(case.document)
    if case.local_refusal is None:
        assert parse_documents(text, origin="model.yaml", base=ROOT)
        return
    with pytest.raises(InvalidDocument) as refused:
        parse_documents(text, origin="model.yaml", base=ROOT)
    assert case.local_refusal in str(refused.value)


def test_a_number_in_scientific_notation_is_a_number():
    text = yaml.safe_dump(MINIMAL) + "  budget: {accuracyLoss: 1e-3}\n"
    (document,) = parse_documents(text, origin="model.yaml", base=ROOT)
    assert document.model.spec.budget.accuracy_loss == 0.001


def test_every_rule_of_the_definition_has_a_case_with_its_message():
    asked = [case.refusal or "" for case in RULES.values()]
    asked += [SHRUNK[2], *(said for _, _, said in STATUS_REFUSED)]
    messages = set(messages_of_rules(structural_schema()))
    assert len(messages) > 20
    untested = [one for one in messages if not any(is_said(one, words) for words in asked)]
    assert untested == []


def messages_of_rules(schema: Any) -> Iterator[str]:
    """What each CEL rule says below `schema`; `%s` where a value is."""
    for rule in schema.get(VALIDATIONS, ()) if isinstance(schema, dict) else ():
        yield rule.get("message") or rule["messageExpression"].rpartition(".format(")[0].strip("'")
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from messages_of_rules(part)


def is_said(message: str, words: str) -> bool:
    """Whether `words` are what the message begins with, its values filled in."""
    parts = message.split("%s")
    shape = ".+".join(re.escape(part) for part in parts[:-1]) + ".+" if len(parts) > 1 else ""
    found = re.match(shape + re.escape(parts[-1][:12]), words) if shape else message.startswith(words)
    return bool(found) and len(words) > 20


@pytest.mark.parametrize(
    ("gpu", "amounts"),
    [
        (Gpu(), {"nvidia.com/gpu": "1"}),
        (Gpu(count=4), {"nvidia.com/gpu": "4"}),
        (Gpu(mig_profile="1g.10gb"), {"nvidia.com/mig-1g.10gb": "1"}),
        (Gpu(resource_name="nvidia.com/mig-3g.40gb"), {"nvidia.com/mig-3g.40gb": "1"}),
        (Gpu(resource_name="amd.com/gpu", count=2), {"amd.com/gpu": "2"}),
    ],
)
def test_a_gpu_becomes_the_resource_that_its_device_plugin_offers(gpu, amounts):
    assert gpu.amounts() == amounts


@pytest.mark.parametrize(
    ("url", "expected"),
    [("w.bin", "file"), ("/w", "file"), ("file:w", "file"), ("s3://b/k", "s3"), ("hf://o/n", "hf")],
)
def test_the_scheme_of_a_source(url, expected):
    assert scheme(url) == expected


def test_an_object_as_the_api_server_has_it_is_read():
    metadata = {"name": "m", "uid": "u", "generation": 2, "managedFields": [], "resourceVersion": "1"}
    model = EarlyExitModel.model_validate({**MINIMAL, "metadata": metadata, "status": STATUS})
    assert model.key == "default/m/u"
    assert model.status is not None
    assert model.status.plan is not None
    assert model.status.plan.to_plan() == Plan.of(4, [1], [0.30000001192092896], "7f3a")


def test_a_status_is_read_and_written_without_a_change():
    assert Status.model_validate(STATUS).model_dump(by_alias=True, mode="json", exclude_unset=True) == STATUS


def test_a_field_of_a_newer_status_is_no_reason_to_fail():
    assert Status.model_validate({**STATUS, "later": {"a": 1}}) == Status.model_validate(STATUS)
