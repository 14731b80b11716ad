"""Small JSON files that contain a checksum of their content, so that every changed byte is detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def seal(content: Mapping[str, Any]) -> bytes:
    """Return a mapping as JSON with the additional key `sha256`, which is the digest of all other keys and values.

    Equal mappings always give the same bytes.
    """
    body = {key: value for key, value in content.items() if key != "sha256"}
    return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """Verify the output of `seal` and return the mapping without `sha256`. Raises ValueError if any byte differs."""
    try:
        content = json.loads(data)
        if isinstance(content, dict) and seal(content) == data:
            return {key: value for key, value in content.items() if key != "sha256"}
    except (ValueError, RecursionError):
        raise ValueError("changed since it was written") from None
    raise ValueError("changed since it was written")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True) + "\n").encode()
