"""Faults of an environment in this process are detected at once and named, and nothing is learned from them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from flows.stages.make_env import make_env, measure
from rlcore.config.groups import EnvConfig
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import EnvironmentFault, EnvironmentLost, RunError, UserError
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.run_config import build_config
from rlcore.store import checkpoint
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare, values

MESSAGES = {
    "obs_nan": r"key 'state' is nan at \[1\]",
    "obs_inf": r"key 'state' is -inf at \[0\]",
    "obs_shape": r"key 'state' has shape \(1,\), but its space has \(2,\)",
    "obs_none": r"key 'state' has shape \(\)",
    "obs_text": r"key 'state' has shape \(\)",
    "obs_texts": r"key 'state' has type <U1, but its space has float32",
    "obs_objects": r"key 'state' has type object",
    "obs_complex": r"key 'state' has type complex64",
    "obs_key": r"key 'state' has shape \(\)",
    "reward_nan": "reward is nan, but must be a finite float32 number",
    "reward_inf": "reward is -inf",
    "reward_huge": r"reward is 1e\+39",
    "reward_none": "reward is None, but must be one real number",
    "reward_text": "reward is '1.0', but must be one real number",
    "reward_array": r"reward is array\(\[1., 1.\]\), but must be one real number",
    "reward_complex": "reward is 1j, but must be one real number",
    "flag_none": "terminated is None, but must be True or False",
    "flag_nan": "terminated is nan, but must be True or False",
    "flag_text": "terminated is 'False', but must be True or False",
    "flag_array": "terminated is array",
    "tuple": r"(step returned 4 values \(the old Gym API\)|reset returned 1 values), but Gymnasium's \w+ returns",
    "raise": "raised RuntimeError: the engine said no$",
}
AT_RESET = [kind for kind in MESSAGES if not kind.startswith(("reward", "flag"))]


@pytest.fixture(autouse=True)
def fault(plugins, monkeypatch):
    """A function that sets the fault and resets the counts of calls."""
    from tests.faults import faulty_envs

    def choose(text: str) -> None:
        faulty_envs.calls.update(step=0, reset=0, close=0)
        monkeypatch.setenv("FAULT", text)

    choose("")
    return choose


def vector(limit: float = 60.0):
    return make_vector_env(EnvConfig(id="Faulty-v0", step_timeout=limit), num_envs=2, seed=0)


def play(envs, steps: int = 45) -> None:
    envs.reset()
    for _ in range(steps):
        envs.step(np.zeros(2, int))


# With two environments, call 26 of `step` is the 13th of environment 1, and call 4 of `reset` is its second.
@pytest.mark.parametrize(
    ("kind", "call", "step"), [*((k, "step:26", 13) for k in MESSAGES), *((k, "reset:4", 0) for k in AT_RESET)]
)
def test_training_fault_names_environment_step_and_key(fault, kind, call, step):
    fault(f"{kind}:{call}")
    with pytest.raises(EnvironmentFault, match=f"^environment 1, step {step} of its episode: .*{MESSAGES[kind]}"):
        play(vector())


@pytest.mark.parametrize("kind", ["obs_nan", "reward_none", "flag_text", "raise"])
def test_evaluation_fault_names_environment_step_and_key(fault, tmp_path, kind):
    run = prepare(tmp_path / "run", "Faulty-v0")
    config, card = build_config(values("Faulty-v0", 512)), json.loads(run.card.read_text())
    agent = RandomAgent(vector().spec)
    fault(f"{kind}:step:26")
    with pytest.raises(EnvironmentFault, match=f"^environment 1, step 13 of its episode: .*{MESSAGES[kind]}"):
        evaluate_agent(agent, config, card, 4, greedy=False)


@pytest.mark.parametrize("kind", ["obs_nan:step:5", "reward_none:step:150", "raise:step:150", "obs_shape:reset:1"])
def test_make_env_raises_user_error_for_faults(fault, tmp_path, kind):
    fault(kind)
    with pytest.raises(UserError, match="^env.id=Faulty-v0: "):
        prepare(tmp_path / "run", "Faulty-v0", card=measure)
    assert not (tmp_path / "run/env_card.json").exists()


# Time


@pytest.mark.parametrize("kind", ["sleep", "spin"])
@pytest.mark.parametrize(("call", "step"), [("step:26", 13), ("reset:4", 0)])
def test_step_timeout_ends_hung_call(fault, kind, call, step):
    fault(f"{kind}:{call}")
    envs, began = vector(limit=0.4), time.monotonic()
    message = rf"^environment 1, step {step} of its episode: hung; no answer within 0.4 s \(env.step_timeout\)$"
    with pytest.raises(EnvironmentLost, match=message):
        play(envs)
    assert 0.4 <= time.monotonic() - began < 300  # the fault sleeps 600 s


def test_step_timeout_is_longer_for_first_reset(fault):
    fault("sleep:reset:1")
    with pytest.raises(EnvironmentLost, match="environment 0, step 0 of its episode: hung; no answer within 1 s"):
        play(vector(limit=0.1))


def test_step_timeout_applies_to_single_steps(fault):
    fault("slow:step:1")  # 0.05 s per step: together more than one limit
    play(vector(limit=1.0), steps=25)


def test_step_timeout_counts_only_environment_time():
    envs = vector(limit=1.0)
    play(envs, steps=1)
    time.sleep(1.2)  # the time of an update
    envs.step(np.zeros(2, int))


def test_close_of_hung_environment_is_abandoned(fault, caplog):
    envs = vector(limit=0.2)
    play(envs, steps=1)
    fault("sleep:close:1")
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 300  # the fault sleeps 600 s
    assert [r.getMessage() for r in caplog.records] == [
        f"environment {index}, close: hung; no answer within 0.2 s (env.step_timeout)" for index in (0, 1)
    ]


def test_make_env_ends_hung_environment(fault, tmp_path):
    for call in ("step:50", "step:150", "close:6"):  # in the checks, and while the tier is measured
        fault(f"sleep:{call}")
        with pytest.raises(UserError, match="env.id=Faulty-v0: .*no answer within 0.4 s"):
            prepare(tmp_path / call, "Faulty-v0", card=measure, env__step_timeout=0.4)


# Weights


def test_save_refuses_non_finite_weights(tmp_path):
    run = prepare(tmp_path / "run", "Faulty-v0")
    session = RunTrainer(run)
    session.advance(lambda facts: None)
    session.save()
    session.advance(lambda facts: None)
    next(session.learner.agent.parameters()).data[0] = float("nan")
    with pytest.raises(RunError, match=f"not finite after {session.policy_steps} policy steps: .*weight|bias"):
        session.save()
    assert len(list(checkpoint.newest_first(run.checkpoints))) == 1
    session.close()


# Tier boundary: environments that share state


def train_and_abandon(run, rng: random.Random | None) -> str:
    """The digest at the end of training; with `rng`, training is interrupted four times within an iteration."""

    class Interrupted(Exception):
        pass

    drops = 0
    while True:
        session, last = RunTrainer(run), rng.randrange(100) if rng and drops < 4 else 10**9
        assert not session.savable
        start = session.policy_steps

        def interrupt(facts, start=start, last=last):
            if facts["policy_steps"] - start > last:
                raise Interrupted

        try:
            while True:
                boundary = session.advance(interrupt)
                saved = session.save() if "checkpoint" in boundary.due else None
                if "evaluate" in boundary.due:
                    session.evaluate()
                if boundary.done:
                    assert drops == (4 if rng else 0)
                    return saved["digest"]
        except Interrupted:
            drops += 1
        finally:
            session.close()


def test_boundary_tier_resume_gives_same_digest(tmp_path, caplog):
    seed = random.randrange(1000)
    print("seed", seed)
    config = {"total_steps": 800, "checkpoint__every": 70, "evaluation__every": 140, "algo__update_epochs": 1}
    uninterrupted, interrupted = (prepare(tmp_path / name, "Shared-v0", **config) for name in ("whole", "cut"))
    card = json.loads(uninterrupted.card.read_text())
    assert (card["tier"], card["deterministic"]) == ("boundary", True)
    assert "a resumed run is identical, bit for bit" in caplog.text
    assert train_and_abandon(interrupted, random.Random(seed)) == train_and_abandon(uninterrupted, None)


def test_make_env_reports_nondeterministic_environment(tmp_path, caplog):
    run = prepare(tmp_path / "run", "Shared-v0", env__wrapper={"lottery": True})
    assert caplog.text.count("it ignores the seed: two runs of one config differ") == 1
    make_env(run)
    card = json.loads(run.card.read_text())
    assert (card["tier"], card["deterministic"]) == ("boundary", False)
    assert "Same seed and actions, same episode: **no**" in Path(run.path / "env_card.md").read_text()
