"""Redaction of passwords and tokens, in URLs and in settings with such names, from printed and stored text."""

from __future__ import annotations

import re

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
    """Return True if the name of a key implies that its value is secret."""
    return NAMED.search(key) is not None


def redact(text: str) -> str:
    """Return a text with `***` in place of passwords and tokens in URLs and in values of secret keys.

    Examples: postgresql://me:***@host/db, env.wrapper.password=***.
    """
    for pattern in (PASSWORD, TOKEN, QUERY, SETTING, ENTRY, UNKNOWN):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
