"""Helm as tests use it: real binaries, the project's chart, a cluster of `support.kube`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from support.eventually import eventually
from support.kube import Cluster

CRD = "earlyexitmodels.apparate.dev"
CHART = Path(__file__).resolve().parents[2] / "charts" / "apparate"
WITHIN_S = 90


class HelmFailed(RuntimeError):
    """Helm ended with an error; the text is what it said."""


class Helm:
    """One helm binary, with the kubeconfig and home that `environ` names."""

    def __init__(self, binary: Path, environ: Mapping[str, str] | None = None) -> None:
        self.binary = binary
        self.environ = {**os.environ, **(environ or {})}

    def __call__(self, *arguments: str) -> str:
        """What helm prints. Raises HelmFailed with what it says on stderr."""
        answer = subprocess.run(
            [str(self.binary), *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if answer.returncode:
            raise HelmFailed(f"{answer.stderr.strip()}\n{answer.stdout.strip()}")
        return answer.stdout

    @property
    def major(self) -> int:
        """3 or 4."""
        return int(self("version", "--template", "{{.Version}}").strip().lstrip("v").split(".")[0])

    def template(
        self, values: Mapping[str, Any] | None = None, *arguments: str, namespace: str = "apparate", chart: Path = CHART
    ) -> list[dict[str, Any]]:
        """The objects of a rendering with `values`, hooks and all."""
        text = self("template", "apparate", str(chart), "-n", namespace, *self.set(values), *arguments)
        return [document for document in yaml.safe_load_all(text) if document]

    def install(
        self,
        values: Mapping[str, Any] | None,
        *arguments: str,
        namespace: str,
        name: str = "apparate",
        chart: Path = CHART,
    ) -> str:
        """helm upgrade --install, without waiting: there is no kubelet to wait for."""
        return self("upgrade", "--install", name, str(chart), "-n", namespace, *self.set(values), *arguments)

    def set(self, values: Mapping[str, Any] | None) -> list[str]:
        """Arguments that set `values`, which may be nested; JSON keeps the types."""
        return [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]


def an_older_chart(folder: Path, *, lacks: tuple[str, str] = ("budget", "rampOverhead")) -> Path:
    """The chart one version back, made in `folder`: a lower number, and a CRD whose spec lacks a field of today's."""
    chart = folder / "older" / "apparate"
    shutil.copytree(CHART, chart)
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**facts, "version": "0.0.9", "appVersion": "0.0.9"}))
    path = chart / "files" / "crd" / "earlyexitmodels.apparate.dev.yaml"
    crd = yaml.safe_load(path.read_text())
    crd["metadata"]["annotations"] = {"apparate.dev/schema": "older"}
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    part, name = lacks
    del spec["properties"][part]["properties"][name]
    path.write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart


def established(cluster: Cluster, crd: str = CRD) -> None:
    """Wait until a CRD serves. `kubectl wait` fails while it has no conditions at all."""

    def serves() -> bool:
        conditions = cluster.get("crd", crd).get("status", {}).get("conditions") or []
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    eventually(serves, within=30)


@contextlib.contextmanager
def a_home(cluster: Cluster, labels: dict[str, str] | None = None) -> Iterator[str]:
    """A fresh namespace in a cluster without our CRD. Releases in it, and the CRD, are gone when the block ends."""
    cluster.delete_crds(CRD)
    with cluster.namespace(labels) as name:
        try:
            yield name
        finally:
            helm = Helm(cluster.bin / "helm3", cluster.environ)
            for release in yaml.safe_load(helm("list", "-n", name, "-o", "yaml")) or []:
                helm("uninstall", release["name"], "-n", name)
    if CRD in cluster.kubectl("get", "crd", "-o", "name"):
        established(cluster)  # one that is deleted before it serves was once not gone after a minute
        cluster.delete_crds(CRD)


def pod_specs(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod templates (metadata and spec) of rendered objects, by kind and name."""
    found = {}
    for one in documents:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            found[name] = {"metadata": one["metadata"], "spec": one["spec"]}
        elif isinstance(template := one.get("spec", {}).get("template"), dict):
            found[name] = template
    return found


def environment(template: Mapping[str, Any]) -> dict[str, Any]:
    """Environment of a pod template's first container: the value, or where it comes from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in template["spec"]["containers"][0]["env"]}


def one(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The rendered object of a kind and name. Raises LookupError."""
    for document in documents:
        if document["kind"] == kind and document["metadata"]["name"] == name:
            return document
    there = [(d["kind"], d["metadata"]["name"]) for d in documents]
    raise LookupError(f"{kind} {name} is not rendered; there are: {there}")


def a_stand_in(kind: str, group: str = "monitoring.coreos.com", version: str = "v1") -> dict[str, Any]:
    """A CRD that stands in for one of Prometheus Operator or KEDA: the kind is there, its fields are not looked at."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": {"stand-in": "true"}},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [served],
        },
    }
