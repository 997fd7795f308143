"""What can be known of a command without executing it: its program, subcommand, options, targets and files exist."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from apparate.cli.main import PLUGIN, PROGRAM, build

ROOT = Path(__file__).resolve().parents[2]
TARGETS: dict[str, str] = dict(
    re.findall(r"^([a-z0-9-]+):[^\n]*\n((?:\t[^\n]*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
"""Each make target with its recipe."""
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
OTHERS = {"amtool", "cd", "cp", "curl", "docker", "export", "git", "go", "helm", "kill", "kubectl", "openssl"}
OTHERS |= {"promtool", "redis-cli", "rm", "sed", "source"}
"""Programs that are not ours: of these the name is all that is looked at here."""
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*")
ELLIPSIS = ("...", "…")


def problems(line: str) -> list[str]:
    """What is wrong with a line of a shell; empty when nothing is."""
    return [wrong for words in simple_commands(line) for wrong in _problems(words)]


def is_command(text: str) -> bool:
    """Whether code inside a sentence is a command line and not a name."""
    words = text.split()
    while words and (ASSIGNMENT.fullmatch(words[0]) or words[0] == "sudo"):
        words = words[1:]
    return len(words) > 1 and (words[0] in OTHERS | set(CHECKS) or words[0].endswith("bin/python"))


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, each as its words: split at pipes and the like, without assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&"):
            yield from [plain] if (plain := _plain(words)) else []
            words = []
        else:
            words.append(word)


def _plain(words: list[str]) -> list[str]:
    ends = next((i for i, word in enumerate(words) if set(word) <= set("<>")), len(words))
    kept = words[:ends]
    while kept and (ASSIGNMENT.fullmatch(kept[0]) or kept[0] == "sudo"):
        kept = kept[1:]
    return kept


def _problems(words: list[str]) -> list[str]:
    program = "python" if words[0].endswith("bin/python") else words[0]
    if program == "kubectl" and words[1:2] == ["apparate"]:
        return _ours(PLUGIN, words[2:])
    if program in CHECKS:
        return CHECKS[program](words[1:])
    return [] if program in OTHERS else [f"{program} is no program that is known here"]


@functools.cache
def _subcommands(program: str) -> dict[str, Any]:
    """What the command line or the plugin has, by name. Typer brings a click of its own, whose types have no name."""
    group: Any = typer.main.get_command(build(everything=True, cluster_only=program == PLUGIN))
    found: dict[str, Any] = group.commands
    return found


def _ours(program: str, words: list[str]) -> list[str]:
    """Of `apparate` or its plugin: the subcommand, its options, and that no argument is missing."""
    words = [word for word in words if word not in (*ELLIPSIS, "-v", "--verbose")]
    if not words or words[0].startswith("-"):
        return []
    command = _subcommands(program).get(words[0])
    if command is None:
        return [f"{program} {words[0]}: there is no such subcommand"]
    if len(words) == 1:
        return []  # a mention
    try:
        context = command.context_class(command, info_name=words[0])
        given, *_ = command.make_parser(context).parse_args(list(words[1:]))
    except Exception as error:
        if (usage := getattr(error, "format_message", None)) is None:
            raise
        return [f"{program} {words[0]}: {usage()}"]
    lacking = [one.name for one in command.params if one.param_type_name == "argument" and one.required]
    return [f"{program} {words[0]}: there is no {name}" for name in lacking if not given.get(name)]


def _make(words: list[str]) -> list[str]:
    """Targets exist; options in ARGS are in the code that the target's recipe names."""
    found = [f"make {one}: there is no such target" for one in words if "=" not in one and one not in TARGETS]
    given = next((one.partition("=")[2] for one in words if one.startswith("ARGS=")), "")
    for target in (one for one in words if one in TARGETS):
        recipe = TARGETS[target]
        if "apparate demo" in recipe:
            found += _ours(PROGRAM, ["demo", *shlex.split(given)])
        elif "$(PYTEST)" not in recipe and "test" not in target:
            script = re.search(r"python (?:-m )?(\S+)|\$\((CLUSTER|IMAGES)\)(\S*)", recipe)
            found += _options(_sources(script), given) if script and given else []
    return found


def _sources(found: re.Match[str]) -> list[Path]:
    """The code behind `python FILE`, `python -m MODULE` or one of the Makefile's short names for it."""
    short = {"CLUSTER": "tools/cluster/apparate_cluster", "IMAGES": "tools/images/apparate_images"}
    place = short[found[2]] if found[2] else found[1]
    folders = [ROOT / place, *(ROOT / "tools").glob(f"*/{place}")]
    there = next((one for one in folders if one.exists()), None)
    assert there is not None, f"the Makefile names {place}"
    return [there] if there.is_file() else sorted(there.rglob("*.py"))


def _options(sources: list[Path], given: str) -> list[str]:
    code = "".join(path.read_text() for path in sources)
    wanted = [word.partition("=")[0] for word in shlex.split(given) if word.startswith("--")]
    return [f"{sources[0].relative_to(ROOT)}: there is no {one}" for one in wanted if f'"{one}"' not in code]


def _python(words: list[str]) -> list[str]:
    """Its file or module exists, and has the options."""
    target = words[1] if words[:1] == ["-m"] else words[0]
    if target.startswith("-"):
        return []
    if words[0] == "-m":
        spec = importlib.util.find_spec(target)
        return [] if spec else [f"python -m {target}: there is no such module"]
    path = ROOT / target
    if not path.exists():
        return [] if "/" not in target else [f"python {target}: there is no such file"]
    sources = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return _options(sources, shlex.join(words[1:]))


def _pip(words: list[str]) -> list[str]:
    """Extras of ours that it asks for exist."""
    wanted = [one for word in words for one in re.findall(r"(?:^\.|apparate)\[([\w,]+)\]", word)]
    return [f"pip: there is no extra {one}" for all_ in wanted for one in all_.split(",") if one not in EXTRAS]


CHECKS: dict[str, Callable[[list[str]], list[str]]] = {
    "apparate": lambda words: _ours(PROGRAM, words),
    "make": _make,
    "python": _python,
    "pip": _pip,
}
