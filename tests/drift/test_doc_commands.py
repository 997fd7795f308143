"""Commands and names in the documentation: each command is executed by a test or read here, each name is ours."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from apparate.contract.metrics import METRICS
from apparate.contract.schema import crd
from apparate_cluster import binaries
from support.commands import is_command, problems, simple_commands
from support.pages import CODE, PAGES, ROOT, RUN_BY, SHELL, TUTORIALS, Block, blocks, name, spans

BLOCKS = [block for page in PAGES for block in blocks(page)]
LEFT_OUT = [one for one in BLOCKS if one.language in CODE and one.reason]
LANGUAGES = {*CODE, "dockerfile", "json", "text", "yaml"}
CRD_SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
VALUES = json.loads((ROOT / "charts/apparate/values.schema.json").read_text())
SETTINGS = (ROOT / "docs/reference/settings.md").read_text()
DOTTED = re.compile(r"([a-z]\w*(?:\.[A-Za-z]\w*)+)(?:[:=].*)?")
FILES = {"csv", "json", "jsonl", "log", "lock", "md", "npz", "onnx", "py", "pt2", "safetensors", "sh", "txt", "yaml"}
NAMES = {f"{one.name}{suffix}" for one in METRICS for suffix in ("", "_total", "_bucket", "_sum", "_count")}
NAMES |= {path.name for depth in ("*", "*/*") for path in ROOT.glob(f"{depth}/apparate_*")}  # packages
place = lambda block: block.place  # noqa: E731 - an id


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language in CODE and one.run.strip()], ids=place)
def test_a_test_executes_the_block_or_the_page_says_why_not(block: Block) -> None:
    test = RUN_BY.get(name(block.page))
    assert test, "name the test of this page in support.pages.RUN_BY, or say above the block: <!-- not run: REASON -->"
    assert name(block.page).removeprefix("docs/") in (ROOT / test).read_text(), f"{test} does not name the page"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_in_which_language_it_is(page: Path) -> None:
    odd = [(one.place, one.language) for one in blocks(page) if one.language not in LANGUAGES]
    assert odd == []
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(page)), "a block that is not read: fences begin a line"
    unfenced = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^\n(?: {4}|\t)(\S.*)$", unfenced, re.MULTILINE)
    assert [line for line in indented if is_command(line)] == [], "a block of commands wants a fence"


@pytest.mark.parametrize("block", [one for one in LEFT_OUT if one.language in SHELL], ids=place)
def test_what_is_not_executed_can_be(block: Block) -> None:
    lines = [line for line in block.lines if block.left_out(line)]
    assert lines, "the mark leaves nothing out"
    assert [one for one in re.findall(r"tests/[\w/]+\.py", block.reason) if not (ROOT / one).exists()] == []
    assert [wrong for line in lines for wrong in problems(line)] == []


@pytest.mark.parametrize("block", [one for one in LEFT_OUT if one.language == "python"], ids=place)
def test_code_that_is_not_executed_can_be_read_and_imports_what_there_is(block: Block) -> None:
    found = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    wanted = [one.name for node in found if isinstance(node, ast.Import) for one in node.names]
    wanted += [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
    assert [one for one in wanted if importlib.util.find_spec(one) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_inside_sentences_can_be_executed(page: Path) -> None:
    assert [(text, wrong) for text in spans(page) if is_command(text) for wrong in problems(text)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("apparate statsu", "no such subcommand"),
        ("apparate bench m --inputs x.npz", "No such option: --inputs"),
        ("apparate replay --budget 0.1", "there is no table"),
        ("kubectl apparate prepare -f m.yaml", "no such subcommand"),
        ("FOO=1 sudo make cluster-upp", "no such target"),
        ('make demo ARGS="--modell text"', "No such option: --modell"),
        ('make bench-serving ARGS="--onlyy noop"', "there is no --onlyy"),
        ("python tools/bench/nothing.py", "no such file"),
        ("pip install '.[kubectll]'", "no extra kubectll"),
        ("true | frobnicate > out", "frobnicate is no program"),
    ],
)
def test_a_wrong_command_is_found(line: str, wrong: str) -> None:
    assert wrong in " ".join(problems(line))


@pytest.mark.cluster
def test_options_of_kubectl_and_helm_that_are_not_executed_exist() -> None:
    """Of these the programs themselves are asked, once for each of their subcommands."""
    lines = [line for one in LEFT_OUT if one.language in SHELL for line in one.lines if one.left_out(line)]
    asked: dict[tuple[str, str], set[str]] = {}
    for words in (words for line in lines for words in simple_commands(line)):
        if words[0] in ("kubectl", "helm") and words[1] != "apparate":
            flags = {word.partition("=")[0] for word in words[1 : [*words, "--"].index("--")] if word.startswith("--")}
            asked.setdefault((words[0], words[1]), set()).update(flags)
    assert asked
    wrong = {" ".join(key): unknown for key, flags in asked.items() if (unknown := flags - options(*key))}
    assert wrong == {}


def options(program: str, subcommand: str) -> set[str]:
    """Long options of a subcommand of kubectl or helm, by its own help."""
    words = [[subcommand, "--help"], *([["options"]] if program == "kubectl" else [])]
    told = ""
    for one in words:
        command = [binaries.find(program), *one]
        told += subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return set(re.findall(r"(--[a-z][a-z-]*)", told))


def resolves(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether a schema has a field of this path; below a mapping anything is."""
    if not path:
        return True
    if schema.get("type") == "array":
        return resolves(schema["items"], path)
    here = schema.get("properties", {})
    if path[0] in here:
        return resolves(here[path[0]], path[1:])
    return not here and schema.get("type") in (None, "object", ["object", "null"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_fields_and_values_that_it_names_exist(page: Path) -> None:
    spec = CRD_SCHEMA["properties"]["spec"]
    first = {*CRD_SCHEMA["properties"], *spec["properties"], *VALUES["properties"]} - {"kind", "metadata"}
    named = {found[1] for text in spans(page) if (found := DOTTED.fullmatch(text))}
    paths = [one.split(".") for one in named if not set(one.split(".")) & FILES]
    lost = [p for p in paths if p[0] in first and not any(resolves(s, p) for s in (CRD_SCHEMA, spec, VALUES))]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_and_variables_that_it_names_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w/.-])apparate_[a-z0-9_]+[a-z0-9](?![\w./-])", text))
    assert sorted(named - NAMES) == []
    variables = set(re.findall(r"\b(?:EEM|APPARATE)_[A-Z0-9_]+[A-Z0-9]\b", text))
    assert [one for one in sorted(variables) if f"`{one}`" not in SETTINGS and not in_code(one)] == []


def in_code(word: str) -> bool:
    """Whether a tracked file that is no page has the word."""
    command = ["git", "grep", "-qw", word, "--", ":!*.md", ":!docs"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_the_tests_of_pages_are_there() -> None:
    assert [page for page in RUN_BY if not (ROOT / page).exists()] == []
    assert [test for test in {*RUN_BY.values(), TUTORIALS} if not (ROOT / test).exists()] == []
