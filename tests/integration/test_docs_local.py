"""The pages that need no cluster: their commands and code, word by word, on models that are small; one server for all.

README.md, guides/vision.md, guides/text.md, prepare.md, local-mode.md, operations.md, reference/recordings.md; and the
commands in the sentences of all pages.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from apparate.cli.logs import LogWriter
from apparate.cli.main import run
from apparate.cli.ports import FREE
from apparate.cli.serve import read
from apparate.cli.stack import LocalStack
from support.commands import is_command
from support.desk import Desk
from support.eventually import eventually
from support.nets import pixels, seeded
from support.pages import PAGES, ROOT, blocks, spans, to_run

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]
README, VISION, TEXT = "README.md", "docs/guides/vision.md", "docs/guides/text.md"
MODELS = {README: "mymodel", VISION: "resnet", TEXT: "sentiment"}
NETWORK = """
import torch


class MyNetwork(torch.nn.Sequential):
    def __init__(self):
        layers = [torch.nn.Conv2d(3, 8, 16, stride=16), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 128)]
        for _ in range(4):
            layers += [torch.nn.ReLU(), torch.nn.Linear(128, 128)]
        super().__init__(*layers, torch.nn.ReLU(), torch.nn.Linear(128, 3))


"""
QUICK = {"epochs": 2}
WORDS = ("a", "film", "of", "great", "wit", "no", "plot", "would", "not", "see", "again", "but", "for", "the", "music")
NOT_HERE = (
    "apparate rollback",
    "apparate serve",
    "apparate check -f document.yaml",
    "apparate replay TABLE",
    "apparate prepare",
)
"""Commands in sentences that this test does not execute: see the quickstart, the tutorial and prepare.md."""


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Desk]:
    """What each page takes for granted: a model, pictures or texts, in a folder of its own."""
    torch.manual_seed(0)
    made = {}
    for page, write in ((README, write_network), (VISION, write_pictures), (TEXT, write_encoder)):
        made[page] = Desk(tmp_path_factory.mktemp(MODELS[page]))
        write(made[page].folder, np.random.default_rng(0))
    return made


def write_network(folder: Path, rng: np.random.Generator) -> None:
    """README's network with its weights, data and document."""
    from safetensors.torch import save_file

    (code,) = (one for one in blocks(ROOT / README) if one.language == "python" and "def load" in one.text)
    (document,) = (one for one in blocks(ROOT / README) if one.language == "yaml")
    (folder / "mymodel.py").write_text(NETWORK + code.text)
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(NETWORK, scope)
    images = (rng.normal(size=(96, 3, 1, 1)) + rng.normal(0, 0.2, (96, 3, 224, 224))).astype(np.float32)
    save_file(seeded(scope["MyNetwork"](), torch.from_numpy(images)).state_dict(), folder / "weights.safetensors")
    np.savez(folder / "inputs.npz", image=images)
    (folder / "model.yaml").write_text(document.text)


def write_pictures(folder: Path, rng: np.random.Generator) -> None:
    """A residual net as Hugging Face has it, JPEGs, and weights with their own code."""
    from PIL import Image
    from safetensors.torch import save_file
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], num_labels=3, layer_type="basic"
    )
    (folder / "pictures").mkdir()
    for number, picture in enumerate(pixels(96)):
        Image.fromarray(picture).save(folder / "pictures" / f"{number:03}.jpg")
    example = (torch.from_numpy(pixels(64)).permute(0, 3, 1, 2) / 255 - 0.45) / 0.225
    model = seeded(ResNetForImageClassification(config), torch.nn.functional.interpolate(example, size=(224, 224)))
    model.save_pretrained(folder / "resnet")
    (folder / "weights").mkdir()
    save_file({"w": torch.zeros(1)}, folder / "weights" / "weights.safetensors")
    np.savez(folder / "images.npz", image=rng.integers(0, 255, (64, 224, 224, 3)).astype(np.uint8))


def write_encoder(desk: Path, rng: np.random.Generator) -> None:
    """Texts, and a BERT as Hugging Face has it, with its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = desk / "sentiment"
    folder.mkdir()
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(96)]
    (desk / "texts.txt").write_text("\n".join(texts))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word.lower() for word in WORDS})]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
    )
    example = tokenizer(texts, return_tensors="pt", padding=True)
    model = seeded(BertForSequenceClassification(config), example["input_ids"], example["attention_mask"])
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def stack(desks: dict[str, Desk]) -> Iterator[LocalStack]:
    """What the three pages come to, prepared and served together."""
    documents = []
    for page, desk in desks.items():
        document = desk.before_serving(page)
        quicken(document)
        documents.append(document)
        assert run(["prepare", "-f", str(document)]) == 0
    log = io.StringIO()
    stack = LocalStack(read(documents), ports=FREE, log=LogWriter(log, human=False))
    try:
        yield stack.start()
    finally:
        stack.kill()
        print(log.getvalue())  # pytest shows it when the test fails


def quicken(document: Path) -> None:
    """Fewer steps than a page has time for: the ramps' quality is nobody's subject here."""
    content = yaml.safe_load(document.read_text())
    content["spec"]["bootstrap"] |= QUICK
    content["spec"]["budget"]["rampOverhead"] = 0.5  # of a model this small a ramp is a large part
    content["spec"]["serving"] = {"device": "cpu", "backend": "eager", "maxBatch": 1}
    document.write_text(yaml.safe_dump(content))


def address(stack: LocalStack, model: str) -> str:
    """Where a model's worker answers."""
    return next(one.http for one in stack.endpoints if one.model.endswith(f"/{model}"))


@pytest.fixture
def at_controller(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> LocalStack:
    """The controller of these models is the one that commands ask."""
    monkeypatch.setenv("APPARATE_CONTROLLER_URL", stack.controller_url)
    return stack


@pytest.mark.parametrize("page", MODELS)
def test_what_a_page_has_after_serving_works_on_its_model(
    page: str, desks: dict[str, Desk], at_controller: LocalStack
) -> None:
    said = desks[page].after_serving(page, address(at_controller, MODELS[page]))
    assert re.search(r"\[\d\] .*exit", said), said


@pytest.mark.parametrize("page", ["docs/local-mode.md", "docs/operations.md"])
def test_a_served_model_is_watched_and_checked_as_a_page_says(
    page: str, desks: dict[str, Desk], at_controller: LocalStack
) -> None:
    desks[README].execute(to_run(page))
    assert "mymodel" in desks[README].said[-1]


def test_commands_in_sentences_work_on_a_model_that_is_served(
    desks: dict[str, Desk], at_controller: LocalStack
) -> None:
    given = dict.fromkeys(("MODEL", "NAME", "person"), "mymodel")
    found = {text for page in PAGES for text in spans(page) if text.startswith("apparate ") and is_command(text)}
    wanted = [text for text in sorted(found) if len(text.split()) > 2 and not text.startswith(NOT_HERE)]
    assert len(wanted) >= 4
    worker = address(at_controller, "mymodel")
    with contextlib.chdir(desks[README].folder):
        assert run(["bench", "mymodel", "--input", "inputs.npz", "--seconds", "1", "--address", worker]) == 0
        for text in wanted:
            words = [given.get(word, word) for word in shlex.split(text)]
            eventually(lambda: run(words[1:]) == 0, within=20)  # noqa: B023 - ends here; feedback is on its way


def test_preparing_again_is_what_its_page_says(desks: dict[str, Desk], stack: LocalStack) -> None:
    desks[README].execute(to_run("docs/prepare.md"))
    assert '"model": "mymodel"' in desks[README].said[-1]


def test_a_recording_is_written_as_its_page_says(tmp_path: Path) -> None:
    (block,) = to_run("docs/reference/recordings.md", "python")
    rows = np.zeros((10, 2), np.float32)
    scope = {"err": rows, "top1": rows.astype(int), "final": rows[:, 0].astype(int), "batch": np.ones(10, int)}
    with contextlib.chdir(tmp_path):
        exec(compile(block.run, block.place, "exec"), scope)
    assert set(np.load(tmp_path / "run.npz").files) == {"err", "top1", "final", "batch"}
