"""Small JSON files that contain a checksum of their content, so that every changed byte is detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def seal(content: Mapping[str, Any]) -> bytes:
    """Return JSON of the content with an additional key `sha256`, the digest of all other keys; deterministic."""
    body = {key: value for key, value in content.items() if key != "sha256"}
    return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """Return the content passed to `seal`. Raises ValueError if the bytes are not an output of `seal`."""
    try:
        content = json.loads(data)
        if isinstance(content, dict) and seal(content) == data:
            return {key: value for key, value in content.items() if key != "sha256"}
    except (ValueError, RecursionError):
        raise ValueError("changed since it was written") from None
    raise ValueError("changed since it was written")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True) + "\n").encode()
