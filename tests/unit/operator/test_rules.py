"""What no file of the operator may do."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import apparate_operator
from apparate_operator import handlers
from apparate_operator.settings import OperatorSettings

FILES = sorted(Path(apparate_operator.__file__).parent.rglob("*.py"))
BLOCKING = {"requests", "subprocess", "urllib.request", "urllib3", "http.client", "httpx", "kubernetes.client"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_blocks_the_event_loop(file: Path):
    text = file.read_text()
    assert "time.sleep" not in text
    nodes = list(ast.walk(ast.parse(text)))
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not imported & BLOCKING


def test_every_handler_is_async_and_only_hears_events():
    tree = ast.parse(inspect.getsource(handlers))
    decorated = {
        node.name: (type(node), [ast.unparse(one) for one in node.decorator_list])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list
    }
    assert len(decorated) == 7
    for kind, names in decorated.values():
        assert kind is ast.AsyncFunctionDef
        assert all(name.startswith(("kopf.on.event(", "kopf.on.login(", "kopf.on.cleanup(")) for name in names)


def test_only_one_file_calls_the_api():
    callers = {file.name for file in FILES if "client.call" in file.read_text()}
    assert callers == {"cluster.py"}


def test_kopf_writes_nothing_into_a_status_and_watches_end_by_themselves():
    found = handlers.kopf_settings(OperatorSettings.load({"EEM_OPERATOR_WORKER_IMAGE": "w"}))
    assert type(found.persistence.progress_storage).__name__ == "AnnotationsProgressStorage"
    assert found.watching.inactivity_timeout is not None
    assert found.watching.server_timeout is not None
    assert found.watching.inactivity_timeout > found.watching.server_timeout
    assert found.watching.inactivity_timeout < 60
    assert found.peering.standalone
