"""Passwords in addresses are hidden, and nothing else is."""

from __future__ import annotations

import pytest

from rlcore.errors import RunError, UserError
from rlcore.system.secrets import redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("mysql+pymysql://me:hun@ter2@host/db?charset=utf8", "mysql+pymysql://me:***@host/db?charset=utf8"),
        ("https://me:hun/ter@2@host/x", "https://me:***@host/x"),
        ("https://me:1234@host:5000", "https://me:***@host:5000"),
        ("redis://:hunter2@host:1/0", "redis://:***@host:1/0"),
        ("https://ghp_hunter2@host", "https://***@host"),
        ("postgresql://host/db?user=me&password=hunter2&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("API request to https://me:hunter2@h/api: X('https://me:hunter2@h')", None),
    ],
)
def test_a_password_is_hidden(text: str, shown: str | None) -> None:
    shown = shown or "API request to https://me:***@h/api: X('https://me:***@h')"
    assert redacted(text) == shown
    assert redacted(shown) == shown
    for error in (UserError(text), RunError(text)):
        assert str(error) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/me/a:b/c@d.db",
        "http://127.0.0.1:5000/#/models/ppo@champion",
        "postgresql://me@host/db",
        "models:/ppo-CartPole-v1@champion",
        "git@github.com:x/y at 12:30, see http://host:80",
    ],
)
def test_what_is_no_password_is_shown(text: str) -> None:
    assert redacted(text) == text
