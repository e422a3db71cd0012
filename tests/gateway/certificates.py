"""Certificates of an authority, a server and a client, for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> None:
    """An authority, a server and a client that it has signed."""
    run = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    make = [*run, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    for name, more in (("server", ["-addext", "subjectAltName=IP:127.0.0.1"]), ("client", [])):
        signed = [*run, "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*signed, "-subj", f"/CN={name}", *more], cwd=folder, check=True, capture_output=True)
