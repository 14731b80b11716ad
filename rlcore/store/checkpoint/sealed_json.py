"""Small JSON files that protect themselves: any changed byte, a space too, is found when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def seal(content: Mapping[str, Any]) -> bytes:
    """JSON of an object with `sha256`, the digest of all the rest. The same content always gives the same bytes."""
    body = {key: value for key, value in content.items() if key != "sha256"}
    return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """The content that `seal` was given, without the digest; `ValueError` where `seal` did not make these bytes."""
    try:
        content = json.loads(data)
        if isinstance(content, dict) and seal(content) == data:
            return {key: value for key, value in content.items() if key != "sha256"}
    except (ValueError, RecursionError):
        raise ValueError("not what was written") from None
    raise ValueError("not what was written")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True) + "\n").encode()
