"""Certificates of a control plane, by openssl: one authority, a certificate for each party.

Keys are elliptic: making RSA ones takes seconds.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

# Key identifiers and critical key usage: Python 3.13 and newer refuse certificates without them.
AUTHORITY_CONFIG = """
[req]
distinguished_name = dn
x509_extensions = ca
prompt = no
[dn]
CN = apparate-cluster
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,digitalSignature,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""
DAYS = "30"


class Authority:
    """An authority whose key and certificates lie in one private folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.key, self.certificate = folder / "ca.key", folder / "ca.crt"
        config = folder / "ca.conf"
        config.write_text(AUTHORITY_CONFIG)
        _new_key(self.key)
        _openssl("req", "-x509", "-new", "-key", self.key, "-days", DAYS, "-config", config, "-out", self.certificate)

    def issue(self, name: str, subject: str, *, usage: str, addresses: str = "") -> tuple[Path, Path]:
        """A certificate and its key for `subject` ("/O=group/CN=user"); usage is serverAuth or clientAuth."""
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        lines = ["basicConstraints=CA:FALSE", "keyUsage=critical,digitalSignature", f"extendedKeyUsage={usage}"]
        lines += ["subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid"]
        lines += [f"subjectAltName={addresses}"] if addresses else []
        extensions.write_text("\n".join(lines))
        _new_key(key)
        _openssl("req", "-new", "-key", key, "-subj", subject, "-config", self.folder / "ca.conf", "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", DAYS)
        _openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", certificate)
        return certificate, key

    def signing_pair(self, name: str) -> tuple[Path, Path]:
        """A public and a private key, for service account tokens."""
        public, private = self.folder / f"{name}.pub", self.folder / f"{name}.key"
        _new_key(private)
        _openssl("ec", "-in", private, "-pubout", "-out", public)
        return public, private


def _new_key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    path.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    try:
        answer = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("openssl is missing (Debian: apt-get install openssl)") from None
    if answer.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {answer.stderr.strip()}")
