"""Passwords in addresses: hidden from everything that is printed or stored."""

from __future__ import annotations

import re

HIDDEN = "***"
# The password of `user:password@` behind any scheme, which may hold / and @ itself; a port before a path is none.
PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)(?!\d*(?:[/?#\s'"]|$))(?:[^\s'"/?#]*(?=@)|[^\s'"]*(?=@))""")
TOKEN = re.compile(r"""(https?://)[^\s/:@'"]+(?=@)""")
QUERY = re.compile(r"""([?&;]\w*(?:password|passwd|pwd|token|secret|api_?key)=)[^&;\s'"]+""", re.IGNORECASE)


def redacted(text: str) -> str:
    """A text with `***` for every password and token of the addresses in it, as postgresql://me:***@host/db."""
    for pattern in (PASSWORD, TOKEN, QUERY):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
