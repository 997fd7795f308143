"""A whole preparation, from the document to the folder that a worker loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from apparate.cli.main import run
from apparate.contract.document import Document, load_documents
from apparate_worker.model.errors import InvalidBootstrap, InvalidSource, UnsupportedModel
from apparate_worker.model.sources import load_source
from apparate_worker.model.store import load_prepared
from apparate_worker.prepare import prepare
from apparate_worker.prepare.progress import Step
from support.nets import CPU, IMAGE, TOKENS, Chain, Residual, example_tokens, pixels, seeded, tokens, write_model

BERT = """
apiVersion: apparate.dev/v1alpha1
kind: EarlyExitModel
metadata: {name: folder}
spec:
  model:
    source: bert
    format: huggingface
    inputs:
    - {name: input_ids, datatype: INT64, shape: [-1], maxSize: 32}
    - {name: attention_mask, datatype: INT64, shape: [-1], maxSize: 32}
  bootstrap: {data: data.npz, epochs: 10}
  serving: {maxBatch: 2, backend: eager, device: cpu}
"""


class Watch:
    """Remembers the stages it was told of."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def __call__(self, step: Step) -> None:
        if step.stage not in self.stages:
            self.stages.append(step.stage)


def image_document(folder: Path, model: nn.Module | None = None, **spec: Any) -> Document:
    return write_model(folder, model or seeded(Residual()), {"pixels": pixels(96)}, [IMAGE], **spec)


@pytest.mark.parametrize(("model", "ramps"), [(Residual(), 4), (Chain(), 6)])
def test_a_prepared_image_model_answers_as_the_original(tmp_path: Path, model: nn.Module, ramps: int):
    document = image_document(tmp_path, seeded(model))
    catalog = prepare(document)
    prepared = load_prepared(document.prepared, document, CPU)
    x = torch.from_numpy(pixels(3, seed=7))
    assert torch.equal(prepared.model({"pixels": x}), model(x))
    assert (prepared.catalog.digest, catalog.ramps) == (catalog.digest, ramps)


def test_a_hugging_face_encoder_is_prepared_from_its_folder(tmp_path: Path):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    torch.manual_seed(0)
    model = seeded(BertForSequenceClassification(config), *example_tokens())
    model.save_pretrained(tmp_path / "bert")
    np.savez(tmp_path / "data.npz", **tokens(96, 12))
    (tmp_path / "model.yaml").write_text(BERT)
    (document,) = load_documents(tmp_path / "model.yaml")
    prepare(document)
    prepared = load_prepared(document.prepared, document, CPU)
    for batch, length in ((1, 3), (4, 9)):
        x = {name: torch.from_numpy(values) for name, values in tokens(batch, length, seed=5).items()}
        assert torch.equal(prepared.model(x), load_source(document)(*[x[spec.name] for spec in TOKENS]))
    assert all(head.shape.masked for head in prepared.heads if head.shape.dimensions == 3)


def test_ramps_agree_with_the_model_better_than_chance_and_better_with_depth(tmp_path: Path):
    document = write_model(tmp_path, seeded(Residual()), {"pixels": pixels(400)}, [IMAGE])
    agreement = [ramp["agreement"] for ramp in prepare(document).extra["ramps"]]
    assert min(agreement) > 0.5
    assert agreement[-1] > 0.85


def test_ramps_of_a_model_with_a_tail_end_with_it(tmp_path: Path):
    document = write_model(
        tmp_path, seeded(Residual(grouped=True)), {"pixels": pixels(96)}, [IMAGE], arguments="grouped=True"
    )
    prepare(document)
    prepared = load_prepared(document.prepared, document, CPU)
    state = prepared.model.advance(0, prepared.model.start({"pixels": torch.from_numpy(pixels(5))}))
    head = prepared.heads[0]
    assert head.numpy()[0].shape[0] == 4
    assert head.logits(head.pool(prepared.model.site(state), None)).shape == (5, 2)


def test_the_source_is_left_as_it_was(tmp_path: Path):
    document = image_document(tmp_path)
    before = document.source.read_bytes()
    prepare(document)
    assert document.source.read_bytes() == before


def test_the_same_inputs_are_not_prepared_twice(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    first = prepare(document)
    assert prepare(document, progress=watch).digest == first.digest
    assert watch.stages == ["ready"]


def test_a_folder_that_was_damaged_is_prepared_again(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    prepare(document)
    (document.prepared / "ramps.safetensors").write_bytes(b"")
    prepare(document, progress=watch)
    assert "training" in watch.stages


def test_other_data_is_another_preparation(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    prepare(document)
    np.savez(document.bootstrap_data, pixels=pixels(96, seed=1))
    prepare(document, progress=watch)
    assert watch.stages == ["sites", "features", "training", "choosing", "latencies", "ready"]


def stop_before_latencies(document: Document) -> None:
    def stop(step: Step) -> None:
        if step.stage == "latencies":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(document, progress=stop)


def test_a_preparation_that_was_stopped_goes_on_after_its_last_finished_stage(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    stop_before_latencies(document)
    assert not document.prepared.exists()
    prepare(document, progress=watch)
    assert watch.stages == ["latencies", "ready"]


def test_a_preparation_that_left_only_half_a_marker_begins_anew(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    partial = document.prepared.with_name(f".{document.prepared.name}.partial")
    partial.mkdir(parents=True)
    (partial / "key.json").write_text("")
    prepare(document, progress=watch)
    assert watch.stages == ["sites", "features", "training", "choosing", "latencies", "ready"]


def test_a_preparation_that_left_a_damaged_folder_begins_anew(tmp_path: Path):
    document, watch = image_document(tmp_path), Watch()
    stop_before_latencies(document)
    weights = document.prepared.with_name(f".{document.prepared.name}.partial") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    prepare(document, progress=watch)
    assert watch.stages == ["sites", "features", "training", "choosing", "latencies", "ready"]


def test_a_folder_that_cannot_be_written_is_taken_when_it_holds_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document = image_document(tmp_path)
    first = prepare(document)
    lock = document.prepared.with_name(f".{document.prepared.name}.lock")
    lock.unlink()
    monkeypatch.setattr("apparate_worker.prepare.job.os.access", lambda *_: False)  # tests may run as root
    assert prepare(document).digest == first.digest
    assert not lock.exists()


def test_a_model_whose_answers_are_not_numbers_is_refused_with_the_record(tmp_path: Path):
    model = seeded(Residual())
    model.head.bias[1] = float("nan")
    with pytest.raises(InvalidBootstrap, match="not finite for bootstrap record 0"):
        prepare(image_document(tmp_path, model))


def test_a_refused_preparation_leaves_no_folder(tmp_path: Path):
    document = image_document(tmp_path)
    document.source.unlink()
    with pytest.raises(InvalidSource, match="does not exist"):
        prepare(document)
    assert not document.prepared.exists()


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    document = image_document(tmp_path)
    document.bootstrap_data.unlink()
    assert run(["prepare", "-f", str(tmp_path / "model.yaml")]) == 2
    assert capsys.readouterr().err.strip().endswith("data.npz does not exist")


def test_the_command_prints_one_line_of_json_for_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    image_document(tmp_path)
    assert run(["prepare", "-f", str(tmp_path / "model.yaml"), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["ramps"] == 4


def test_other_bootstrap_data_than_expected_is_refused(tmp_path: Path):
    document = image_document(tmp_path)
    bootstrap = document.model.spec.bootstrap.model_copy(update={"sha256": "0" * 64})
    spec = document.model.spec.model_copy(update={"bootstrap": bootstrap})
    changed = Document(document.model.model_copy(update={"spec": spec}), document.base)
    with pytest.raises(InvalidSource, match=r"SHA-256 of .*data\.npz is .*the document expects 000"):
        prepare(changed)


def test_a_task_that_is_not_served_is_named(tmp_path: Path):
    (tmp_path / "model.yaml").write_text(
        BERT.replace("    format:", "    task: generation\n    format:").replace(
            "device: cpu}", "device: cpu, protocols: {openai: {}}}"
        )
    )
    with pytest.raises(UnsupportedModel, match="task is generation: this version serves only classification"):
        prepare(load_documents(tmp_path / "model.yaml")[0])
