"""Redaction of passwords in URLs and of values of secret keys."""

from __future__ import annotations

import pytest

from rlcore.errors import RunError, UserError
from rlcore.system.secrets import redact


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
def test_redact_hides_password_in_url(text: str, shown: str | None) -> None:
    shown = shown or "API request to https://me:***@h/api: X('https://me:***@h')"
    assert redact(text) == shown
    assert redact(shown) == shown
    for error in (UserError(text), RunError(text)):
        assert str(error) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "env.wrapper.password=hunter2: X-v1 has no such argument",
            "env.wrapper.password=***: X-v1 has no such argument",
        ),
        ("env.wrapper.password=hun ter 2: no such key", "env.wrapper.password=***: no such key"),
        ("+api_key=hunter2", "+api_key=***"),
        ("exp=ppo +env.wrapper.my_token=hunter2 seed=3", "exp=ppo +env.wrapper.my_token=*** seed=3"),
        ("write them as two, 'a.secret=hun'ter2' and 'seed=3'", "write them as two, 'a.secret=***' and 'seed=3'"),
        ("type `shepherd train env.wrapper.APIKEY='hunter2'`", "type `shepherd train env.wrapper.APIKEY=***`"),
        ("env.wrapper={password: hunter2, g: 3}: must be", "env.wrapper={password: ***, g: 3}: must be"),
        ("env.wrapper={'a': 1, 'password': 'hunter2'}: must", "env.wrapper={'a': 1, 'password': ***}: must"),
        ("unknown key 'env.token' (value 'hunter2'); known", "unknown key 'env.token' (value ***); known"),
        ("env:\n  wrapper:\n    password: hunter2\n    g: 3", "env:\n  wrapper:\n    password: ***\n    g: 3"),
        ("seed=-1: too small\na.password=hunter2: no key", "seed=-1: too small\na.password=***: no key"),
    ],
)
def test_redact_hides_values_of_secret_keys(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown
    assert str(UserError(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the password and token: see MLFLOW_TRACKING_PASSWORD, in .env",
        "env.wrapper.tokens=3 algo.token_count=5",
        "sqlite:////home/me/a:b/c@d.db",
        "http://127.0.0.1:5000/#/models/ppo@champion",
        "postgresql://me@host/db",
        "models:/ppo-CartPole-v1@champion",
        "git@github.com:x/y at 12:30, see http://host:80",
    ],
)
def test_redact_keeps_text_without_secrets(text: str) -> None:
    assert redact(text) == text
