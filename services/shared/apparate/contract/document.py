"""EarlyExitModel documents in YAML files: read with errors that name file, line and field.

What is taken and refused here is what the API server takes and refuses: camelCase names only, no text where a number
belongs, null as if the field were missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import ValidationError

from apparate.contract.resource import EarlyExitModel


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: 1e-3 is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


MAX_BYTES = 4 * 2**20  # of a file; the API server takes some 1.5 MB of one object
MAX_NODES = 100_000  # of a document, aliases expanded; one with a thousand tensors has 10,000
MAX_TOLD = 20  # mistakes of a document; a person mends no more at once, and finding each one's line takes its time


class InvalidDocument(ValueError):
    """A document that cannot be used: `model.yaml:12: spec.budget.accuracyLoss is 2: ...`."""


@dataclass(frozen=True)
class Document:
    """One EarlyExitModel and the folder its relative paths start from."""

    model: EarlyExitModel
    base: Path

    def path(self, url: str) -> Path:
        """The local path of a file:// URL or a path. Raises InvalidDocument for another scheme."""
        parts = urlsplit(url)
        if parts.scheme not in ("", "file"):
            raise InvalidDocument(f"{url} cannot be read here: only file:// and plain paths can")
        return (self.base / unquote(parts.path)).resolve()

    @property
    def source(self) -> Path:
        """Weights or folder of the model."""
        return self.path(self.model.spec.model.source)

    @property
    def bootstrap_data(self) -> Path:
        """Unlabelled data that ramps are trained on."""
        return self.path(self.model.spec.bootstrap.data)

    @property
    def prepared(self) -> Path:
        """Folder of the prepared model."""
        return self.path(self.model.spec.storage.path) / self.model.metadata.namespace / self.model.metadata.name


def load_documents(path: Path) -> list[Document]:
    """Every EarlyExitModel of a YAML file. Raises InvalidDocument, and OSError when the file cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidDocument(f"{path}: has {path.stat().st_size} bytes, at most {MAX_BYTES} are read")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidDocument(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    return parse_documents(text, origin=str(path), base=path.resolve().parent)


def parse_documents(text: str, *, origin: str, base: Path) -> list[Document]:
    """Every EarlyExitModel in `text`; `origin` is what errors call it. Raises InvalidDocument."""
    try:
        nodes = [n for n in yaml.compose_all(text, Loader=_Loader) if n is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{origin}:{mark.line + 1}" if mark else origin
        raise InvalidDocument(f"{place}: not YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise InvalidDocument(f"{origin}: too deep") from None
    if not nodes:
        raise InvalidDocument(f"{origin}: has no document")
    found = [Document(_validate(node, origin), base) for node in nodes]
    for key, times in Counter(document.model.key for document in found).items():
        if times > 1:
            raise InvalidDocument(f"{origin}: {key} is there twice")
    return found


def _validate(node: yaml.Node, origin: str) -> EarlyExitModel:
    _refuse_bomb(node, origin)
    _refuse_twice(node, origin)
    loader = _Loader("")
    try:
        data = loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-99-99 looks like a date
        raise InvalidDocument(f"{origin}:{node.start_mark.line + 1}: not YAML: {error}") from None
    try:
        text = json.dumps(_plain(data), default=str)
    except RecursionError:
        raise InvalidDocument(f"{origin}:{node.start_mark.line + 1}: too deep, or an alias within itself") from None
    try:
        return EarlyExitModel.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        mistakes = error.errors()
        lines = [_describe(dict(one), node, origin) for one in mistakes[:MAX_TOLD]]
        if len(mistakes) > MAX_TOLD:
            lines.append(f"{origin}: and {len(mistakes) - MAX_TOLD} more")
        raise InvalidDocument("\n".join(lines)) from None


def _refuse_bomb(node: yaml.Node, origin: str) -> None:
    """Refuse a document that is too large once its aliases are expanded; a few lines can stand for gigabytes."""
    sizes: dict[int, int] = {}
    todo, within = [(node, False)], set()
    while todo:
        one, seen_inside = todo.pop()
        inside = _inside(one)
        if seen_inside:
            within.discard(id(one))
            sizes[id(one)] = 1 + sum(sizes[id(part)] for part in inside)
        elif id(one) in within:
            raise InvalidDocument(f"{origin}:{node.start_mark.line + 1}: an alias within itself")
        elif id(one) not in sizes:
            within.add(id(one))
            todo += [(one, True), *((part, False) for part in inside)]
    if sizes[id(node)] > MAX_NODES:
        raise InvalidDocument(
            f"{origin}:{node.start_mark.line + 1}: has {sizes[id(node)]} values once its aliases (*name) are expanded, "
            f"at most {MAX_NODES} are read"
        )


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refuse_twice(node: yaml.Node, origin: str) -> None:
    """Refuse a key that is there twice: YAML readers take the last one in silence, kubectl refuses."""
    seen, todo = set(), [node]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            todo += one.value
        elif isinstance(one, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in one.value:
                todo.append(value)
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                if key.value in keys:
                    raise InvalidDocument(f"{origin}:{key.start_mark.line + 1}: {key.value} is there twice")
                keys.add(key.value)


def _plain(value: Any) -> Any:
    """What the API server would make of it before it validates."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _describe(error: dict[str, Any], node: yaml.Node, origin: str) -> str:
    where = [part for part in error["loc"] if not str(part).startswith("function-")]
    field = ".".join(str(part) for part in where) or "document"
    message = str(error["msg"]).removeprefix("Value error, ")
    line = _line(node, where)
    if error["type"] == "missing":
        return f"{origin}:{line}: {field} is missing"
    if error["type"] == "extra_forbidden":
        return f"{origin}:{line}: {field} is not a field"
    value = repr(error.get("input"))
    return f"{origin}:{line}: {field} is {value if len(value) <= 80 else value[:77] + '...'}: {message}"


def _line(node: yaml.Node, where: Sequence[Any]) -> int:
    """Line of the deepest node on the way to the field that exists."""
    line = node.start_mark.line
    for part in where:
        following = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    following, line = value, key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            following = node.value[part]
            line = following.start_mark.line
        if following is None:
            break
        node = following
    return line + 1
