"""The user's own code that makes a model: the entrypoint's module and what it imports from the same folder.

Found by reading, not by importing: the same files each time, whatever else a process has loaded. Named relative to the
folder, so that it does not matter where that lies.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from apparate.contract.document import Document

INSTALLED = {"site-packages", "dist-packages"}  # packages have versions, and nobody edits them in place


def own_code(document: Document) -> dict[str, str]:
    """SHA-256 of each file, by its name below the folder that Python finds the entrypoint in.

    Empty when there is none to see: no entrypoint, an installed package, or a module that is not found.
    """
    wanted = document.model.spec.model
    if wanted.format != "torch" or not wanted.entrypoint:
        return {}
    module = wanted.entrypoint.partition(":")[0]
    root = _root(module.partition(".")[0], document.base)
    if root is None or INSTALLED & set(root.parts):
        return {}
    return dict(sorted(_read(root, module)))


def _root(top: str, base: Path) -> Path | None:
    """The folder that holds a module or package, in the order in which loading the model looks."""
    try:
        found = util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: in sys.modules by other ways than an import
        found = None
    found = found or PathFinder.find_spec(top, [str(base)])
    place = _place(found) if found is not None else None
    return place.resolve().parent if place is not None else None


def _place(found: ModuleSpec) -> Path | None:
    inner = list(found.submodule_search_locations or ())
    if inner:
        return Path(inner[0])
    return Path(found.origin) if found.has_location and found.origin else None


def _read(root: Path, module: str) -> Iterator[tuple[str, str]]:
    todo, seen = list(_files(root, module)), set[Path]()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            text = file.read_bytes()
        except OSError:
            continue  # loading says what is wrong with it
        yield file.relative_to(root).as_posix(), hashlib.sha256(text).hexdigest()
        todo += [other for name in _imported(text, file.relative_to(root)) for other in _files(root, name)]


def _files(root: Path, module: str) -> Iterator[Path]:
    """The files below `root` that importing a.b.c runs."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        inner = root.joinpath(*parts[:count])
        yield from (one for one in (inner / "__init__.py", inner.with_name(f"{inner.name}.py")) if one.is_file())


def _imported(text: bytes, file: Path) -> Iterator[str]:
    """Every module that a file names in an import, and every name that might be one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # loading says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.parts[: -node.level] if node.level else ()
            start = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{start}.{one.name}".lstrip(".") for one in node.names if one.name != "*")
            if start:
                yield start
