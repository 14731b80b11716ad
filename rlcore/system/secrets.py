"""Redaction of passwords and tokens in text that is printed or stored.

Secrets are detected in URLs, and in settings with a key such as `password` or `api_key`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
# The password of `user:password@` after any scheme; it may contain / and @. A port before a path is not a password.
PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)(?!\d*(?:[/?#\s'"]|$))(?:[^\s'"/?#]*(?=@)|[^\s'"]*(?=@))""")
TOKEN = re.compile(r"""(https?://)[^\s/:@'"]+(?=@)""")
NAME = r"(?:password|passwd|token|secret|api_?key)"  # ending of the key of a secret
QUERY = re.compile(rf"""([?&;]\w*(?:{NAME}|pwd)=)[^&;\s'"]+""", re.IGNORECASE)
# Text after the value of a setting, in a sentence or between other settings; the value may contain spaces.
BEHIND = r"""(?=: |[;,]\s|\s+[+~]*[\w./@]+=|['"`)\]}]+(?:[\s,;:.]|$)|$)"""
SETTING = re.compile(
    rf"""(?<![?&;\w.])([+~]*[\w./]*{NAME}=)(?:"[^"\n]*"|'[^'\n]*'|.+?{BEHIND})""", re.IGNORECASE | re.MULTILINE
)
# A secret in a mapping, `{{password: …}}`, and in the error message about an unknown key.
ENTRY = re.compile(
    rf"""((?:[{{,]\s*|^\s*)['"]?[\w.]*{NAME}['"]?\s*:\s+)(?:"[^"\n]*"|'[^'\n]*'|[^,}}\n]+)""",
    re.IGNORECASE | re.MULTILINE,
)
UNKNOWN = re.compile(rf"""({NAME}' \(value )(?:"[^"\n]*"|'[^'\n]*')""", re.IGNORECASE)
NAMED = re.compile(rf"{NAME}$", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Return True if a key ends in password, passwd, token, secret or api_key, so that its value is secret."""
    return NAMED.search(key) is not None


def redact(text: str) -> str:
    """Replace passwords and tokens in a text by `***`: those in URLs, and the values of secret keys (`is_secret`).

    Examples of results: postgresql://me:***@host/db, env.wrapper.password=***.
    """
    for pattern in (PASSWORD, TOKEN, QUERY, SETTING, ENTRY, UNKNOWN):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def find_secrets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the secrets in a config: passwords in URLs, and the values of secret keys (`is_secret`).

    Args:
        value: nested dicts and lists.
        key: dotted key of `value`; "" for the whole config.

    Yields:
        Dotted key and text.
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from find_secrets(name, key)
            yield from find_secrets(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from find_secrets(part, key)
    elif isinstance(value, str) and (redact(value) != value or (value and is_secret(key))):
        yield key, value
