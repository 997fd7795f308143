"""Where a model and its bootstrap data come from, and how the model is called."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from apparate.contract.shape import ListMap, Rule, Secret, Shape

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "BYTES",
]
SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")
KNOWN = re.compile(r"^(file:.|pvc://[a-z0-9]|s3://[^/]+/.|hf://[^/]+/.|oci://[^/]+/.)")
ABSOLUTE = re.compile(r"^(file:(//)?)?/[^/]")
FORMS = "file:///PATH, pvc://CLAIM/PATH, s3://BUCKET/KEY, hf://OWNER/NAME[@REVISION] or oci://REGISTRY/NAME[:TAG]"


def _known(url: str) -> bool:
    return not SCHEME.match(url) or bool(KNOWN.match(url))


def _url_rules(field: str) -> tuple[Rule, ...]:
    return (
        Rule(
            f"!self.{field}.matches('{SCHEME.pattern}') || self.{field}.matches('{KNOWN.pattern}')",
            f"{field} is {{{field}}}, must be {FORMS}",
            lambda shape: _known(getattr(shape, field)),
        ),
        Rule(
            f"self.{field}.matches('^(pvc|s3|hf|oci)://') || self.{field}.matches('{ABSOLUTE.pattern}')",
            f"{field} is {{{field}}}: a relative path is for local mode; here it must be {FORMS}",
            None,
        ),
    )


class Credentials(Shape):
    """The Secret that opens a source: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL, AWS_REGION,
    AWS_SESSION_TOKEN when wanted) for s3://, HF_TOKEN for hf://, .dockerconfigjson for oci://."""

    secret_name: Secret = Field(description="Name of a Secret in the namespace of the EarlyExitModel.")


Dimension = Annotated[
    int,
    Rule(
        "self == -1 || self > 0",
        "dimension is {self}, must be positive, or -1 where it varies",
        lambda size: size == -1 or size > 0,
    ),
]


class TensorSpec(Shape):
    """One input of the model, without its batch dimension."""

    name: str = Field(min_length=1, max_length=128, description="Name of the argument of the model's forward.")
    datatype: Datatype = Field(description="Open Inference Protocol datatype.")
    shape: tuple[Dimension, ...] = Field(
        default=(), max_length=8, description="Shape of one item without the batch dimension; -1 where it varies."
    )
    max_size: int = Field(
        default=4096, ge=1, le=1_048_576, description="Largest size allowed in a dimension that varies."
    )
    pad: float = Field(
        default=0.0, description="Value that fills up shorter items of a batch in a dimension that varies."
    )


class ModelSource(Shape):
    """Where the model comes from and how it is called."""

    source: str = Field(
        min_length=1,
        max_length=2048,
        description="Weights or folder of the model: file:///PATH in the worker's image or volumes, pvc://CLAIM/PATH, "
        "s3://BUCKET/KEY, hf://OWNER/NAME[@REVISION], oci://REGISTRY/NAME[:TAG] as an image volume. In local mode also "
        "a path, relative to the document.",
    )
    sha256: str | None = Field(
        default=None,
        max_length=64,
        pattern="^[0-9a-f]{64}$",
        description="Expected SHA-256 of the source file; refused when it differs.",
    )
    credentials: Credentials | None = Field(default=None, description="The Secret that opens the source.")
    format: Literal["torch", "huggingface"] = Field(
        default="torch", description="torch: an nn.Module from the entrypoint; huggingface: a folder with config.json."
    )
    entrypoint: str | None = Field(
        default=None,
        max_length=512,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$",
        description="package.module:function that takes the source's path and returns an nn.Module.",
    )
    task: Literal["classification", "generation"] = Field(
        default="classification",
        description="What the model's output means. classification: class scores, one answer a request. generation: "
        "tokens; not served by this version, such a model stays unprepared with the reason TaskNotServed.",
    )
    inputs: Annotated[tuple[TensorSpec, ...], ListMap("name")] = Field(
        default=(), max_length=16, description="The model's inputs, in the order of its forward."
    )
    output: str = Field(default="logits", max_length=128, description="Name of the output tensor: class scores.")
    classes: tuple[Annotated[str, Field(max_length=256)], ...] = Field(
        default=(), max_length=10_000, description="Names of the classes, for people."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        *_url_rules("source"),
        Rule(
            "self.format != 'torch' || has(self.entrypoint)",
            "format torch needs an entrypoint (package.module:function)",
            lambda model: model.format != "torch" or model.entrypoint is not None,
        ),
    )


class Bootstrap(Shape):
    """Unlabelled data that ramps are first trained on."""

    data: str = Field(
        min_length=1,
        max_length=2048,
        description="An .npz with one array [N, ...] for each input: file:///PATH, pvc://CLAIM/PATH, s3://BUCKET/KEY, "
        "hf://OWNER/NAME[@REVISION]/PATH or oci://REGISTRY/NAME[:TAG]. In local mode also a path, relative to the "
        "document.",
    )
    sha256: str | None = Field(
        default=None,
        max_length=64,
        pattern="^[0-9a-f]{64}$",
        description="Expected SHA-256 of the data file; refused when it differs.",
    )
    credentials: Credentials | None = Field(default=None, description="The Secret that opens the data.")
    epochs: int = Field(default=30, ge=1, le=1000, description="Most passes over the data; training stops early.")
    max_records: int = Field(default=20_000, ge=64, le=10_000_000, description="Most records read from the data.")
    rules: ClassVar[tuple[Rule, ...]] = _url_rules("data")


def scheme(url: str) -> str:
    """The scheme of a source: file (also of a plain path), pvc, s3, hf or oci."""
    found: Any = SCHEME.match(url)
    return found[0][:-1] if found else "file"
