"""The command line: errors are one line with a status, and help needs no heavy import."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apparate.cli.errors import CommandError
from apparate.cli.main import SUBCOMMANDS, Subcommand, build, explain, load, run
from apparate.contract.document import InvalidDocument


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in SUBCOMMANDS if name not in shown] == []


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_help_imports_no_torch_and_no_service() -> None:
    code = (
        "import sys\nfrom apparate.cli.main import run\nrun(['--help'])\n"
        "print([m for m in ('torch', 'redis', 'grpc', 'fastapi', 'numpy', 'apparate_worker') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("argv", [["nope"], ["serve"], ["serve", "--nope"], ["status", "--url"]])
def test_a_wrong_command_line_is_one_line_and_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "-f", "/nowhere/model.yaml"]) == 2
    assert capsys.readouterr().err == "error: /nowhere/model.yaml: No such file or directory\n"


def test_a_bad_document_is_told_by_file_line_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "model.yaml"
    document.write_text(
        "metadata: {name: m}\nspec:\n  model: {source: w, entrypoint: 'a.b:c'}\n"
        "  bootstrap: {data: d.npz}\n  budget:\n    accuracyLoss: 2\n"
    )
    assert run(["serve", "-f", str(document)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {document}:6: spec.budget.accuracyLoss is 2: ")


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name in ("a.yaml", "b.yaml"):
        files += ["-f", str(tmp_path / name)]
        (tmp_path / name).write_text(
            "metadata: {name: m}\nspec: {model: {source: w, entrypoint: 'a.b:c'}, bootstrap: {data: d.npz}}\n"
        )
    assert run(["serve", *files]) == 2
    assert "default/m is there twice" in capsys.readouterr().err


def test_verbose_may_stand_anywhere_and_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "-f", "/nowhere/model.yaml", "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(CommandError, match=r"needs the package no_such_package.*pip install 'apparate\[worker\]'"):
        load("prepare", Subcommand("no_such_package:command", "", "worker"))


def test_a_package_that_is_missed_while_a_command_runs_is_named_as_well() -> None:
    code = "import sys; sys.modules['torch'] = None; from apparate.cli.main import run; run(['prepare', '-f', 'm'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    wanted = "error: `apparate prepare` needs the package torch, not installed; run: pip install 'apparate[worker]'"
    assert done.stderr.strip() == wanted


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidDocument("model.yaml:1: bad"), 2),
        (FileNotFoundError(2, "No such file or directory", "x"), 2),
        (RuntimeError("no redis-server"), 1),
        (KeyError("x"), 1),
        (CommandError("it failed"), 1),
    ],
)
def test_every_error_has_a_status(error: Exception, status: int) -> None:
    assert explain(error)[1] == status


def test_every_subcommand_loads() -> None:
    assert build(everything=True) is not None


def test_no_controller_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", "http://127.0.0.1:1"]) == 1
    assert "is `apparate serve` running?" in capsys.readouterr().err


def test_an_address_that_is_not_http_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exits", "m", "--url", "file:///etc/passwd"]) == 2
    assert "must start with http" in capsys.readouterr().err


def test_a_preparation_that_is_killed_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "model.yaml"
    document.write_text(
        "metadata: {name: m}\nspec: {model: {source: w, entrypoint: 'a.b:c'}, bootstrap: {data: d.npz}}\n"
    )
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], -signal.SIGKILL))
    elsewhere = ["--redis-url", "redis://127.0.0.1:1/0", "--http-port", "0", "--grpc-port", "0"]
    assert run(["serve", "-f", str(document), *elsewhere]) == 1
    assert capsys.readouterr().err == f"error: {document}: preparing was ended by SIGKILL\n"


@pytest.mark.parametrize("name", list(SUBCOMMANDS))
def test_the_help_of_every_command_says_its_exit_statuses(name: str) -> None:
    words = SUBCOMMANDS[name].exits
    assert build(name).registered_commands[list(SUBCOMMANDS).index(name)].epilog == words
    assert [word for word in ("0 ", "1 ", "2 ", "130 ") if word not in words] == []


def test_exit_statuses_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "--help"]) == 0
    assert "Exit status: 0 done; 1 it failed; 2 the input is to blame" in " ".join(capsys.readouterr().out.split())
