"""What installers in a build need from this machine: a mirror, a proxy, a CA. Mounted for a step, and in no layer."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

CA = "/run/secrets/ca"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
OF_THE_MACHINE = re.compile(r"_(CERT|CACHE_DIR|PYTHON|CONFIG_FILE|REQUIRE_VIRTUALENV|TARGET|PREFIX|USER)$")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


def settings() -> dict[str, str]:
    """Variables that make pip and uv in a build look where they look on this machine."""
    of_uv = {name: value for name, value in os.environ.items() if name.startswith("UV_") or name in PROXIES}
    found = _pip_settings() | of_uv
    kept = {name: value for name, value in found.items() if not OF_THE_MACHINE.search(name)}
    for name in [name for name in kept if name.endswith("_FIND_LINKS")]:
        folders = [one for one in kept[name].split() if "://" in one]  # a folder of this machine is not in the build
        if folders:
            kept[name] = " ".join(folders)
        else:
            del kept[name]
    return kept | ({"PIP_CERT": CA, "SSL_CERT_FILE": CA} if bundle() else {})


def bundle() -> Path | None:
    """The CA bundle of this machine, which may have a CA of its own in it."""
    path = Path(os.environ.get("SSL_CERT_FILE") or BUNDLE)
    return path if path.is_file() else None


def arguments(folder: Path) -> list[str]:
    """`--secret` arguments of a build; what they point to is written into `folder`."""
    exports = folder / "installer"
    exports.touch(mode=0o600)
    exports.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings().items()))
    given = {"installer": exports, "ca": bundle(), "uv": _uv_settings()}
    return [f"--secret=id={name},src={path}" for name, path in given.items() if path is not None]


def _pip_settings() -> dict[str, str]:
    """Every option of pip's files and environment, as the variable that says the same."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found = {}
    for line in said.stdout.splitlines():
        match = re.match(r"(?::env:\.|global\.|install\.)([\w-]+)='(.*)'$", line)
        if match:
            found[f"PIP_{match[1].replace('-', '_').upper()}"] = match[2].replace("\\n", " ").strip()
    return found


def _uv_settings() -> Path | None:
    named = os.environ.get("UV_CONFIG_FILE")
    homes = [os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config"), "/etc"]
    candidates = [Path(named)] if named else [Path(home) / "uv" / "uv.toml" for home in homes]
    return next((path for path in candidates if path.is_file()), None)
