"""A throw-away certificate authority for servers of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trustme


def write_certificates(folder: Path, names: Sequence[str]) -> Path:
    """Write ``server.crt``, ``server.key`` for ``names`` and return the authority's ``ca.pem``."""
    authority = trustme.CA()
    certificate = authority.issue_cert(*names)
    certificate.private_key_pem.write_to_path(str(folder / "server.key"))
    for index, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(str(folder / "server.crt"), append=index > 0)
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    return ca_file
