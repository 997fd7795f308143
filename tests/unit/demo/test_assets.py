"""What ships with the demo is what SOURCES.md says, and small."""

from __future__ import annotations

import pytest

from apparate_demo.assets import ASSETS, MAX_BYTES, SHA256, asset, sha256


@pytest.mark.parametrize("name", SHA256)
def test_an_asset_is_the_file_that_was_checked(name):
    assert sha256(asset(name)) == SHA256[name]


@pytest.mark.parametrize("name", SHA256)
def test_source_and_sum_of_an_asset_are_written_down(name):
    rows = [line for line in (ASSETS / "SOURCES.md").read_text().splitlines() if line.startswith(f"| `{name}`")]
    assert len(rows) == 1 and SHA256[name] in rows[0]


def test_nothing_else_ships_but_licences():
    others = {p.name for p in ASSETS.iterdir()} - set(SHA256) - {"SOURCES.md"}
    assert all(name.startswith("LICENSE.") for name in others)


def test_assets_together_stay_small():
    assert sum(p.stat().st_size for p in ASSETS.iterdir()) <= MAX_BYTES


def test_a_file_that_does_not_ship_has_no_path():
    with pytest.raises(KeyError):
        asset("cifar10_serving.npz")
