from pathlib import Path

import pytest

from apparate.contract.document import InvalidDocument, load_documents, parse_documents

GOOD = """\
apiVersion: apparate.dev/v1alpha1
kind: EarlyExitModel
metadata: {name: person}
spec:
  model:
    source: weights.safetensors
    entrypoint: my.models:load
    inputs:
    - {name: image, datatype: UINT8, shape: [96, 96, 3]}
  bootstrap:
    data: file:frames.npz
"""


def parse(text):
    return parse_documents(text, origin="model.yaml", base=Path("/models"))


def test_relative_paths_start_at_the_document(tmp_path):
    (tmp_path / "model.yaml").write_text(GOOD)
    (document,) = load_documents(tmp_path / "model.yaml")
    assert document.source == tmp_path / "weights.safetensors"
    assert document.bootstrap_data == tmp_path / "frames.npz"
    assert document.prepared == tmp_path / "prepared/default/person"


def test_a_file_url_is_an_absolute_path():
    (document,) = parse(GOOD.replace("weights.safetensors", "file:///data/my%20weights.safetensors"))
    assert document.source == Path("/data/my weights.safetensors")


def test_a_scheme_that_cannot_be_read_is_refused():
    (document,) = parse(GOOD.replace("weights.safetensors", "s3://bucket/w"))
    with pytest.raises(InvalidDocument, match="s3://bucket/w cannot be read here"):
        _ = document.source


def test_several_documents_in_one_file():
    second = GOOD.replace("name: person", "name: other")
    assert [d.model.key for d in parse(GOOD + "---\n" + second)] == ["default/person/local", "default/other/local"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("metadata: {name: person}", "metadata: {name: Person}"), "model.yaml:3: metadata.name is 'Person'"),
        (("datatype: UINT8", "datatype: uint8"), "model.yaml:9: spec.model.inputs.0.datatype is 'uint8'"),
        (("shape: [96, 96, 3]", "shape: [0]"), "model.yaml:9: .*dimension is 0, must be positive"),
        (("    entrypoint: my.models:load\n", ""), "format torch needs an entrypoint"),
        (("    data: file:frames.npz", "    dta: x"), r"model.yaml:10: spec.bootstrap.data is missing"),
        (("  bootstrap:", "  budget: {accuracyLoss: 2}\n  bootstrap:"), "model.yaml:10: spec.budget.accuracyLoss is 2"),
        (("kind: EarlyExitModel", "kind: Deployment"), "model.yaml:2: kind is 'Deployment'"),
        (("spec:", "spec: ["), "model.yaml:6: not YAML"),
    ],
)
def test_errors_name_file_line_and_field(change, message):
    with pytest.raises(InvalidDocument, match=message):
        parse(GOOD.replace(*change))


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(InvalidDocument, match=r"model.yaml:12: spec.bugdet is not a field"):
        parse(GOOD + "  bugdet: {}\n")


def test_an_empty_file_is_refused():
    with pytest.raises(InvalidDocument, match="has no document"):
        parse("# nothing\n")


def test_a_document_that_is_a_list_is_refused():
    with pytest.raises(InvalidDocument, match=r"model\.yaml:1"):
        parse("- a\n- b\n")


def test_the_same_model_twice_is_refused():
    with pytest.raises(InvalidDocument, match="default/person/local is there twice"):
        parse(GOOD + "---\n" + GOOD)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"a: &a [*a]\n", "an alias within itself"),
        (b"[" * 3000, "too deep"),
        (b"a: 2026-99-99\n", "not YAML: month must be"),
        (b"spec:\n  budget: {}\n  budget: {}\n", ":3: budget is there twice"),
    ],
)
def test_a_file_that_yaml_stumbles_over_is_named(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "m.yaml").write_bytes(text)
    with pytest.raises(InvalidDocument, match=rf"m\.yaml.*{words}"):
        load_documents(tmp_path / "m.yaml")


def a_bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_aliases_that_stand_for_very_much_are_refused_before_they_are_expanded():
    with pytest.raises(InvalidDocument, match=r"model\.yaml:1: has \d{20,} values once its aliases .* at most 100000"):
        parse(a_bomb(40))


def test_merged_aliases_that_stand_for_very_much_are_refused_too():
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30)]
    with pytest.raises(InvalidDocument, match="values once its aliases"):
        parse("\n".join(lines))


def test_an_alias_for_something_small_is_expanded():
    text = GOOD.replace("name: image,", "name: &n image,").replace("data: file:frames.npz", "data: *n")
    assert parse(text)[0].model.spec.bootstrap.data == "image"


def test_a_mapping_with_very_many_keys_is_read_in_time():
    with pytest.raises(InvalidDocument, match="k0 is not a field") as refused:
        parse(GOOD + "".join(f"k{i}: 1\n" for i in range(20_000)))
    assert str(refused.value).splitlines()[-1] == "model.yaml: and 19980 more"


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "model.yaml").write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(InvalidDocument, match=r"has 4194305 bytes, at most 4194304 are read"):
        load_documents(tmp_path / "model.yaml")
