"""What the command line says where there is no cluster: one line, with the way to a local controller."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from apparate.cli.main import PLUGIN, run

LOCALLY = "for a local `apparate serve` say --url http://127.0.0.1:8070"
DOCUMENT = """
metadata: {name: m}
spec:
  model: {source: "pvc://m/w", entrypoint: "a.b:c", inputs: [{name: x, datatype: FP32, shape: [4]}]}
  bootstrap: {data: "pvc://m/d.npz"}
"""
COMMANDS = [
    ["status"],
    ["exits", "m"],
    ["plan", "m"],
    ["history", "m"],
    ["what-if", "m"],
    ["pause", "m"],
    ["check", "-f", "model.yaml"],
]


@pytest.fixture(autouse=True)
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the commands run there is one."""
    (tmp_path / "model.yaml").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)


def a_kubeconfig(folder: Path, server: str = "http://127.0.0.1:1") -> Path:
    found = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    found.write_text(yaml.safe_dump(content))
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_without_a_kubeconfig_the_way_to_a_local_controller_is_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--kubeconfig", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'none'} cannot be used: ") and said.count("\n") == 1
    assert LOCALLY in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_cluster_that_does_not_answer_is_named_with_the_way_to_a_local_controller(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--kubeconfig", str(a_kubeconfig(tmp_path))], PLUGIN) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: http://127.0.0.1:1 does not answer (") and said.count("\n") == 1
    assert LOCALLY in said


def test_a_context_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--kubeconfig", str(a_kubeconfig(tmp_path)), "--context", "other"]) == 2
    said = capsys.readouterr().err
    assert "other" in said and LOCALLY in said


def test_the_plugin_asks_a_controller_when_its_address_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run(["status", "--url", "http://127.0.0.1:1"], PLUGIN) == 1
    assert capsys.readouterr().err.startswith("error: no controller at http://127.0.0.1:1: ")


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:1"], ids=["no kubeconfig", "no answer"])
def test_doctor_says_that_there_is_no_cluster_as_a_finding(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = a_kubeconfig(tmp_path, server) if server else tmp_path / "none"
    assert run(["doctor", "--kubeconfig", str(kubeconfig), "-o", "yaml"]) == 1
    shown = capsys.readouterr()
    (found,) = yaml.safe_load(shown.out)
    assert found["verdict"] == "fail" and LOCALLY in f"{found['told']} {found['next']}"
    assert shown.err == "error: 1 of 1 checks failed\n"


def test_where_there_is_no_local_controller_the_way_to_a_cluster_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", "http://127.0.0.1:1"]) == 1
    assert "models of a cluster: kubectl apparate, or -n NAMESPACE" in capsys.readouterr().err
