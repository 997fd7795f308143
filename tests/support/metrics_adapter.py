"""custom.metrics.k8s.io from the workers' own /metrics: runs in a pod, in the place of prometheus-adapter.

`python metrics_adapter.py` serves gauges of pods, averaged over some seconds as a recording rule would, over TLS with
the certificate in /tls. Who asks is not checked: the cluster is the test's.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUP = "/apis/custom.metrics.k8s.io/v1beta2"
METRICS = ("apparate_in_flight_requests", "apparate_waiting_requests")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
LOOK_S, KEEP = 0.25, 40  # 10 s
samples: dict[tuple[str, str, str], deque[float]] = defaultdict(lambda: deque(maxlen=KEEP))
"""(namespace, pod, metric) -> newest values."""


def pods(namespace: str, selector: str) -> list[dict[str, Any]]:
    """Running pods, from the API server."""
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    path = f"{API}/api/v1/namespaces/{namespace}/pods?{urllib.parse.urlencode({'labelSelector': selector})}"
    request = urllib.request.Request(path, headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"})
    with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
        items: list[dict[str, Any]] = json.load(answer)["items"]
    return [one for one in items if one["status"].get("phase") == "Running" and one["status"].get("podIP")]


def scrape(pod: dict[str, Any]) -> None:
    """Keep the gauges that one pod shows now."""
    port = next(one["containerPort"] for one in pod["spec"]["containers"][0]["ports"] if one["name"] == "http")
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=2) as answer:
        for line in answer.read().decode().splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in METRICS:
                meta = pod["metadata"]
                samples[meta["namespace"], meta["name"], name].append(float(line.rpartition(" ")[2]))


def follow(namespace: str, selector: str) -> None:
    """Scrape for ever; the list of pods is asked for anew every few seconds."""
    found: list[dict[str, Any]] = []
    listed = 0.0
    while True:
        try:
            if time.monotonic() - listed > 3:
                found, listed = pods(namespace, selector), time.monotonic()
            for pod in found:
                scrape(pod)
        except OSError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        time.sleep(LOOK_S)


def values(namespace: str, metric: str, selector: str) -> dict[str, Any]:
    """A MetricValueList of the pods that a selector takes."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    items = []
    for pod in pods(namespace, selector):
        name = pod["metadata"]["name"]
        kept = samples.get((namespace, name, metric))
        if kept:
            about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name}
            value = f"{round(1000 * sum(kept) / len(kept))}m"
            items.append({"describedObject": about, "metric": {"name": metric}, "timestamp": now, "value": value})
    return {"kind": "MetricValueList", "apiVersion": GROUP.removeprefix("/apis/"), "metadata": {}, "items": items}


class Face(BaseHTTPRequestHandler):
    """The API: discovery, and values of pods."""

    def do_GET(self) -> None:
        """One question."""
        url = urllib.parse.urlsplit(self.path)
        parts = urllib.parse.unquote(url.path).removeprefix(GROUP).strip("/").split("/")
        if url.path.rstrip("/") == GROUP:
            kind = {"singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            resources = [{"name": f"pods/{metric}", **kind} for metric in METRICS]
            group = GROUP.removeprefix("/apis/")
            body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
        elif url.path.startswith(GROUP) and len(parts) == 5 and parts[2:4] == ["pods", "*"] and parts[4] in METRICS:
            asked = urllib.parse.parse_qs(url.query)
            body = values(parts[1], parts[4], asked.get("labelSelector", [""])[0])
        else:
            self.send_error(404)
            return
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Not a word: the autoscaler asks often."""


def main(namespace: str, selector: str) -> None:
    """Serve until the pod ends."""
    threading.Thread(target=follow, args=(namespace, selector), daemon=True).start()
    server = ThreadingHTTPServer(("", 8443), Face)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
