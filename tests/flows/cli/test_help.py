"""Text of `shepherd train -h`, and the tables in docs/configuration.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.help import rewrite, train_help
from flows.config.yaml_files import presets
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError

DOCS = Path(__file__).parents[3] / "docs"
KEYS = [a.key for a in arguments(RunConfig) if a.key != "algo"]
KEYS += dict.fromkeys(a.key for module in ALGORITHMS.values() for a in arguments(module.Config, "algo."))


def shown(text):
    return [line.split(" = ")[0].strip() for line in text.splitlines() if " = " in line and not line.startswith("    ")]


def test_train_help_shows_every_key_once():
    assert sorted(shown(train_help())) == sorted(KEYS)


def test_train_help_fits_in_100_columns():
    assert max(len(line) for line in train_help().splitlines()) <= 100


def test_train_help_lists_presets():
    lines = train_help().splitlines()
    first = next(line for line in lines if line.startswith("  a2c "))
    left = first.index("A2C on CartPole")
    for name in presets():  # descriptions form one column; after a long name they start on the next line
        at = next(n for n, line in enumerate(lines) if line == f"  {name}" or line.startswith(f"  {name} "))
        about = lines[at][left:] or lines[at + 1][left:]
        assert about and not about.startswith(" ") and len(lines[at]) <= 100


def test_train_help_shows_default_meaning_and_allowed():
    text = " ".join(train_help(["gae_lambda"]).split())
    assert "algo.gae_lambda = 0.95" in text
    assert (
        "λ of generalized advantage estimation (ppo, a2c, ppo_recurrent only). Allowed: number that is >= 0 and <= 1"
        in text
    )


def test_train_help_shows_preset_values_beside_defaults():
    assert "algo.gamma = 0.9    (default 0.99)" in train_help(["exp=ppo_pendulum"])
    assert "algo.gamma = 0.5    (default 0.99)" in train_help(["exp=ppo", "algo.gamma=0.5", "algo"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env"], [key for key in KEYS if key.startswith("env.")]),
        (["run"], [key for key in KEYS if "." not in key]),
        (["seed"], ["seed"]),
        (["algo.mlp_keys"], ["algo.mlp_keys.decoder", "algo.mlp_keys.encoder", "env.vector_key"]),
        (["fabric", "precision"], ["fabric.precision"]),
    ],
)
def test_train_help_selects_keys_by_word(words, expected):
    assert sorted(shown(train_help(words))) == sorted(expected)


@pytest.mark.parametrize(("words", "part"), [(["algo.optimizer.lrr"], "algo.optimizer.lr"), (["zzz"], "sections")])
def test_train_help_refuses_unknown_word(words, part):
    with pytest.raises(UserError, match=part):
        train_help(words)


def test_train_help_lists_allowed_values_of_compile():
    assert "Allowed: one of auto, true, false" in " ".join(train_help(["algo.compile"]).split())


def test_train_help_lists_user_preset_with_file(tmp_path, monkeypatch):
    own = tmp_path / "exp" / "mine.yaml"
    own.parent.mkdir()
    own.write_text("# @package _global_\n\n# A maze of one's own. More to say.\ndefaults: [ppo, _self_]\n")
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(tmp_path))
    words = " ".join(train_help().split())
    assert "mine A maze of one's own. (" in words
    assert "More to say" not in words


def test_configuration_page_matches_config_classes():
    text = (DOCS / "configuration.md").read_text()
    assert rewrite(text) == text, "run: python -m flows.cli.help docs/configuration.md"


def test_rewrite_refuses_document_without_marks():
    with pytest.raises(ValueError, match="must contain"):
        rewrite("no marks")


def test_configuration_page_lists_every_preset():
    text = (DOCS / "configuration.md").read_text()
    assert [name for name in presets() if f"| `{name}` |" not in text] == []
