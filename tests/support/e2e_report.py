"""What a run of the end-to-end tests leaves: a story, times to recovery, and on failure all there is to know."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client, watch

from support.e2e import DEMO, UNREACHABLE, Stage
from support.e2e_traffic import Load

AGAIN_S = 1.0
KINDS = "pods,deployments,replicasets,jobs,services,endpointslices,persistentvolumeclaims,horizontalpodautoscalers"


@dataclass
class Mark:
    """Something that was done to the cluster, and when it was over."""

    what: str
    begin: float
    recovered: dict[str, float] = field(default_factory=dict)
    """Seconds until each of the things that were waited for."""

    def over(self, what: str) -> None:
        """Book that `what` is there again."""
        self.recovered[what] = round(time.time() - self.begin, 1)


class Report:
    """One folder for one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks: list[Mark] = []
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of the story."""
        with self._lock, (self.folder / "story.jsonl").open("a") as story:
            story.write(json.dumps(line) + "\n")

    @contextmanager
    def doing(self, what: str) -> Iterator[Mark]:
        """A span of the story in which something is done to the cluster."""
        mark = Mark(what, time.time())
        self.marks.append(mark)
        yield mark
        self.write({"kind": "mark", "what": what, "begin": mark.begin, "end": time.time(), "recovered": mark.recovered})

    def keep_load(self, load: Load) -> None:
        """Write what the load generator has said into the story; once, at its end."""
        for line in load.lines():
            self.write(line)

    def table(self) -> list[str]:
        """Times to recovery, for the terminal."""
        rows = [(m.what, what, seconds) for m in self.marks for what, seconds in m.recovered.items()]
        return [f"{what:<46} {recovered:<44} {seconds:6.1f} s" for what, recovered, seconds in rows]

    def collect(self, stage: Stage, name: str) -> Path:
        """Everything that may say why a test failed, in a folder of its own."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        asked = {
            "state.txt": ("get", f"nodes,eem,{KINDS}", "-A", "-o", "wide"),
            "events.txt": ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp", "-o", "wide"),
            "describe.txt": ("describe", f"eem,{KINDS}", "-A"),
            "nodes.txt": ("describe", "nodes"),
            "models.yaml": ("get", "eem", "-A", "-o", "yaml"),
        }
        for file, arguments in asked.items():
            (folder / file).write_text(stage.said(*arguments))
        try:
            pods = stage.core.list_pod_for_all_namespaces(_request_timeout=10).items
        except UNREACHABLE as error:
            (folder / "pods.txt").write_text(str(error))
            return folder
        for pod in pods:
            meta = pod.metadata
            logs = ("logs", meta.name, "-n", meta.namespace, "--all-containers", "--tail=5000")
            (folder / f"{meta.namespace}_{meta.name}.log").write_text(stage.said(*logs))
            if any(one.restart_count for one in pod.status.container_statuses or ()):
                (folder / f"{meta.namespace}_{meta.name}.previous.log").write_text(stage.said(*logs, "--previous"))
        return folder


class Recorder:
    """Follows the models in a thread, and writes each new plan and each condition that changed into the story."""

    def __init__(self, stage: Stage, report: Report) -> None:
        self._objects = client.CustomObjectsApi(stage.cluster.api_client())
        self._report = report
        self._ended = threading.Event()
        self._known: dict[tuple[str, str], Any] = {}
        self.transitions: list[tuple[float, str, str, str, str, str]] = []
        """(when, model, condition, status, reason, message), in their order."""
        self._thread = threading.Thread(target=self._follow, daemon=True, name="recorder")

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def of(self, model: str, condition: str) -> list[tuple[float, str, str, str]]:
        """(when, status, reason, message) of one condition of one model, in their order."""
        return [(t[0], *t[3:]) for t in self.transitions if t[1:3] == (model, condition)]

    def _follow(self) -> None:
        where = ("apparate.dev", "v1alpha1", DEMO, "earlyexitmodels")
        while not self._ended.is_set():
            try:
                events = watch.Watch().stream(
                    self._objects.list_namespaced_custom_object, *where, timeout_seconds=5, _request_timeout=8
                )
                for event in events:
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._take(event["object"])
            except UNREACHABLE:
                self._ended.wait(AGAIN_S)

    def _take(self, model: dict[str, Any]) -> None:
        name, status, now = model["metadata"]["name"], model.get("status") or {}, time.time()
        plan = status.get("plan") or {}
        if plan and self._new((name, "plan"), plan.get("revision")):
            ramps = {one.get("layer", ""): one["threshold"] for one in plan.get("ramps", ())}
            line = {"kind": "plan", "at": now, "model": name, "revision": plan.get("revision")}
            self._report.write({**line, "reason": plan.get("reason"), "message": plan.get("message"), "ramps": ramps})
        for one in status.get("conditions", ()):
            told = (one["status"], one["reason"], one.get("message", ""))
            if self._new((name, one["type"]), told):
                self.transitions.append((now, name, one["type"], *told))
                line = {"kind": "condition", "at": now, "model": name, "type": one["type"], "status": one["status"]}
                self._report.write({**line, "reason": one["reason"], "message": one.get("message", "")})

    def _new(self, key: tuple[str, str], value: Any) -> bool:
        if self._known.get(key) == value:
            return False
        self._known[key] = value
        return True
