"""Passwords, in addresses and of keys that are called so: hidden from everything that is printed or stored."""

from __future__ import annotations

import re

HIDDEN = "***"
# The password of `user:password@` behind any scheme, which may hold / and @ itself; a port before a path is none.
PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)(?!\d*(?:[/?#\s'"]|$))(?:[^\s'"/?#]*(?=@)|[^\s'"]*(?=@))""")
TOKEN = re.compile(r"""(https?://)[^\s/:@'"]+(?=@)""")
NAME = r"(?:password|passwd|token|secret|api_?key)"  # what the last part of a secret's key ends in
QUERY = re.compile(rf"""([?&;]\w*(?:{NAME}|pwd)=)[^&;\s'"]+""", re.IGNORECASE)
# What follows the text of a setting, which may hold spaces, in a sentence or among other settings.
BEHIND = r"""(?=: |[;,]\s|\s+[+~]*[\w./@]+=|['"`)\]}]+(?:[\s,;:.]|$)|$)"""
SETTING = re.compile(
    rf"""(?<![?&;\w.])([+~]*[\w./]*{NAME}=)(?:"[^"\n]*"|'[^'\n]*'|.+?{BEHIND})""", re.IGNORECASE | re.MULTILINE
)
# The same in a mapping, `{{password: …}}`, and as a sentence quotes a key that is not known.
ENTRY = re.compile(
    rf"""((?:[{{,]\s*|^\s*)['"]?[\w.]*{NAME}['"]?\s*:\s+)(?:"[^"\n]*"|'[^'\n]*'|[^,}}\n]+)""",
    re.IGNORECASE | re.MULTILINE,
)
UNKNOWN = re.compile(rf"""({NAME}' \(value )(?:"[^"\n]*"|'[^'\n]*')""", re.IGNORECASE)
NAMED = re.compile(rf"{NAME}$", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Tell whether what a key holds is to be hidden, by its name."""
    return NAMED.search(key) is not None


def redact(text: str) -> str:
    """A text with `***` for every password and token of addresses and of keys that are called so.

    As postgresql://me:***@host/db, or env.wrapper.password=***.
    """
    for pattern in (PASSWORD, TOKEN, QUERY, SETTING, ENTRY, UNKNOWN):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
