"""What an older CustomResourceDefinition is told to lack."""

from __future__ import annotations

import copy

from apparate.contract.definition import lacking, outdated
from apparate.contract.schema import DIGEST, crd
from apparate_operator.kinds import Json


def older(*fields: str, digest: str = "0123456789abcdef") -> Json:
    """This version's definition without some fields of its spec."""
    found = copy.deepcopy(crd())
    found["metadata"]["annotations"][DIGEST] = digest
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for field in fields:
        at = spec
        *parents, last = field.split(".")
        for name in parents:
            at = at["properties"][name]
        del at["properties"][last]
    return found


def test_the_own_definition_lacks_nothing():
    assert lacking(crd()) == ()
    assert outdated(()) == ""


def test_a_definition_of_another_version_that_knows_everything_lacks_nothing():
    assert lacking(older()) == ()


def test_missing_fields_are_named_by_their_outermost_path():
    fields = lacking(older("budget.rampOverhead", "autoscaling"))
    assert sorted(fields) == ["spec.autoscaling", "spec.budget.rampOverhead"]
    assert "spec.budget.rampOverhead" in outdated(fields)


def test_a_definition_without_our_version_lacks_everything():
    found = older()
    found["spec"]["versions"][0]["name"] = "v1"
    assert "spec" in lacking(found)


def test_many_missing_fields_are_counted_and_not_all_listed():
    text = outdated(tuple(f"spec.f{n}" for n in range(12)))
    assert "spec.f4 and 7 more" in text
    assert "spec.f5" not in text
