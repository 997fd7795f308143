#!/usr/bin/env bash
# What a release consists of, in out/release/VERSION, with checksums: wheel, chart, images with their bills of materials.
# Uploads nothing. WITHOUT_IMAGES=1 leaves the images out, which are 7 GB.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
chart=$(sed -n 's/^version: //p' charts/apparate/Chart.yaml)
fail() {
    echo "error: $*" >&2
    exit 2
}
[ "$chart" = "$version" ] || fail "charts/apparate/Chart.yaml has version $chart, pyproject.toml has $version"
grep -q "^## $version\b" CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'"
[ -z "$(git status --porcelain)" ] || fail "the checkout has changes that are not committed: git status"
to=out/release/$version
rm -rf "$to" && mkdir -p "$to"
echo "release: the wheel"
.venv/bin/uv build --quiet --offline --no-build-isolation --python .venv/bin/python --wheel --out-dir "$to" .
rm -f "$to/.gitignore"
echo "release: the chart"
.cache/cluster/bin/helm package charts/apparate --destination "$to" > /dev/null
echo "release: the bill of materials of the lock file"
.venv/bin/cyclonedx-py requirements requirements.lock --of JSON --output-reproducible -o "$to/apparate-$version.cdx.json" > /dev/null
if [ -z "${WITHOUT_IMAGES:-}" ]; then
    echo "release: the images"
    PYTHONPATH=tools/images:tools/cluster .venv/bin/python -m apparate_images --links "$to/images" --engine buildah
fi
(cd "$to" && find -L . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum > SHA256SUMS)
echo "release: $to"
sed 's/^.\{66\}/  /' "$to/SHA256SUMS"
