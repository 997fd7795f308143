"""What is in an image, as CycloneDX: Python packages by cyclonedx-py, Debian's from dpkg's own list."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from . import buildah, place
from .place import ImageFailed

NAME = "sbom.cdx.json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(reference: str, path: Path) -> None:
    """Look into an image and write its bill of materials. Raises ImageFailed."""
    container = buildah.answer("from", "--pull-never", reference)
    try:
        tree = Path(buildah.answer("mount", container))
        bill = _python(tree)
        bill.setdefault("components", []).extend(_debian(tree))
        bill["metadata"]["component"] = {"type": "container", "name": reference, "bom-ref": reference}
        path.write_text(json.dumps(bill, indent=1))
    finally:
        buildah.run("rm", container)


def _python(tree: Path) -> dict[str, Any]:
    """cyclonedx-py asks an interpreter for its path; this one answers for the image, whose own need not run here."""
    packages = [str(one) for one in (tree / "opt/apparate/lib").glob("python3*/site-packages")]
    packages = packages or [str(tree / "usr/local/lib")]  # it wants one place at least
    interpreter = place.root() / place.SCRATCH / "python"
    interpreter.write_text(f"#!{sys.executable}\nprint({json.dumps(packages)!r})\n")
    interpreter.chmod(0o755)
    asked = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format", "JSON", str(interpreter)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageFailed(f"cyclonedx-py ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _debian(tree: Path) -> Iterator[dict[str, Any]]:
    for paragraph in (tree / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if not fields.get("Status", "").endswith(" installed"):
            continue
        architecture = fields.get("Architecture", ARCHITECTURES.get(platform.machine(), "all"))
        url = PackageURL("deb", "debian", fields["Package"], fields["Version"], {"arch": architecture}).to_string()
        yield {"type": "library", "name": fields["Package"], "version": fields["Version"], "purl": url, "bom-ref": url}
