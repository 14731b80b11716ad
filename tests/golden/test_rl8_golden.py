"""PPO and recurrent PPO against the results of rl8 (tests.golden.makers.rl8_ppo; rl8 is not installed), and mutants."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.algorithms.on_policy.ppo_recurrent import learner as recurrent
from rlcore.algorithms.on_policy.ppo_recurrent.learner import CLOCK
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Trajectory
from tests.golden.fixtures import arrays, check_numbers, check_state, part, settings, tensors
from tests.golden.mutants import Mutant, given, swap
from tests.golden.on_policy import KnownOrder
from tests.learning.assembly import context

RL8 = settings("rl8")
HORIZON, ENVS, OBS = RL8["common"]["horizon"], RL8["common"]["num_envs"], 3
SPACES = {
    "discrete": ActionSpec("Discrete", (), "int64", nvec=(4,), start=(0,)),
    "continuous": ActionSpec("Box", (2,), "float32", low=(-1.0,) * 2, high=(1.0,) * 2),
}
CASES = [(case, variant) for case, taken in RL8["steps"].items() for variant in taken]
PARAMETERS = {  # names of rl8 -> ours
    "feature_model.0.0": "actor.layers.0",
    "feature_model.0.2": "actor.layers.2",
    "vf_model.0.0": "critic.layers.0",
    "vf_model.0.2": "critic.layers.2",
    "feature_model.0": "actor.layers.0",
    "feature_model.2": "actor.layers.2",
    "feature_model.4": "head.linear",
    "vf_model.0": "critic.layers.0",
    "vf_model.2": "critic.layers.2",
    "vf_model.4": "critic.layers.4",
    "lstm.weight_ih_l0": "cell.input_proj.weight",
    "lstm.weight_hh_l0": "cell.carry_proj.weight",
    "lstm.bias_ih_l0": "cell.input_proj.bias",
    "lstm.bias_hh_l0": "cell.carry_proj.bias",
    "feature_head": "head.linear",
    "vf_head": "critic.layers.0",
    "log_std": "head.log_std",
}
DEFAULT_MODEL = {"feature_model.2": "head.linear", "vf_model.2": "critic.layers.4"}  # where rl8's own model differs


def setting_of(case: str, variant: str) -> dict[str, Any]:
    """Return rl8's config, with its defaults for the keys that variants change."""
    defaults = {"shuffle_minibatches": True, "accumulate_grads": False, "horizons_per_env_reset": 1}
    defaults |= {"normalize_advantages": True, "normalize_rewards": True, "vf_clip_param": 5.0}
    chosen = RL8["recurrent"] if case.startswith("recurrent") else {}
    return defaults | RL8["common"] | chosen | RL8["variants"][variant]


def config_values(case: str, variant: str) -> dict[str, Any]:
    """Return the values of our config for rl8's config."""
    rl8 = setting_of(case, variant)
    same = ("gamma", "gae_lambda", "max_grad_norm", "normalize_advantages")
    values: dict[str, Any] = {key: rl8[key] for key in same} | {
        "name": "ppo",
        "total_steps": 100_000,
        "rollout_steps": HORIZON,
        "update_epochs": rl8["num_sgd_iters"],
        "shuffle": rl8["shuffle_minibatches"],
        "accumulate_minibatches": None if rl8["accumulate_grads"] else 1,
        "clip_coef": 0.2,
        "dual_clip": rl8.get("dual_clip_param"),
        "target_kl": rl8.get("target_kl_div"),
        "value_loss": "smooth_l1",
        "value_loss_cap": rl8["vf_clip_param"],
        "vf_coef": rl8["vf_coeff"],
        "ent_coef": rl8["entropy_coeff"],
        "encoder": {"mlp_layers": 0},
        "optimizer": {"name": "adam"} | rl8["optimizer_config"],
    }
    if rl8["normalize_advantages"]:
        values["advantage_scope"] = "rollout"
    if rl8["normalize_rewards"]:
        values |= {"normalize_reward": True, "reward_scale": "rollout", "reward_clip": 1e9}
    if "lr_schedule" in rl8:  # counted in transitions, and rl8's in environments times rollouts
        for ours, theirs in (("lr", "lr"), ("ent_coef", "entropy_coeff")):
            values[f"{ours}_schedule"] = [[count * HORIZON, value] for count, value in rl8[f"{theirs}_schedule"]]
        values["schedule_kind"] = "linear" if "lr_schedule_kind" in rl8 else "step"
    networks = {"dense_units": RL8["units"], "mlp_layers": 2, "dense_act": "relu"}
    if not case.startswith("recurrent"):
        values |= {"per_rank_batch_size": rl8["sgd_minibatch_size"]}
    else:
        networks["mlp_layers"], sequences = 0, ENVS * HORIZON // rl8["seq_len"]
        values |= {"name": "ppo_recurrent", "rnn": {"lstm": {"hidden_size": RL8["units"]}}}
        values |= {"per_rank_sequence_length": rl8["seq_len"], "reset_recurrent_state_on_done": False}
        values["per_rank_num_batches"] = sequences // (rl8["sgd_minibatch_size"] or sequences)
        values["sequences_per_state_reset"] = max(0, rl8["seqs_per_state_reset"]) or None
    return values | {"actor": networks | {"state_dependent_std": False}, "critic": networks}


def ours(case: str, weights: dict[str, Any]) -> dict[str, Tensor]:
    """Return weights under our names."""
    names = PARAMETERS | (DEFAULT_MODEL if case == "discrete" else {})
    named = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        named[f"{names[layer]}.{kind}" if layer in names else names[name]] = torch.as_tensor(value)
    return named


def make_learner(case: str, variant: str) -> Any:
    """Return a learner in float64 with rl8's initial weights."""
    module = recurrent if case.startswith("recurrent") else ppo
    spec = EnvSpec("Golden-v0", {"state": ArraySpec((OBS,), "float32")}, SPACES[case.removeprefix("recurrent_")])
    learner: Any = module.build(context(config_values(case, variant), spec, ENVS, precision="64-true"))[0]
    learner.agent.load_state_dict(ours(case, part(arrays(f"rl8_{case}"), "initial/")))
    learner.agent.encoder.forward = lambda obs, lead=1: obs["state"]  # in float64 too
    samples = learner.samples

    def in_float64(batch: Batch) -> Any:
        found = samples(batch)
        return found._replace(weight=found.weight.double())

    learner.samples = in_float64
    return learner


def make_batch(case: str, variant: str, update: int, period: int | None) -> Batch:
    """Return the rollout of an update: rl8's transitions in our alignment, without rl8's value after the last row.

    `period` is the number of rows after which the recurrent state is reset.
    """
    content = arrays(f"rl8_{case}")
    rows = {k: v[update].swapaxes(0, 1) for k, v in part(content, f"{variant}/rows/").items()}  # [T+1, B, ...]
    found = tensors({name: np.ascontiguousarray(value) for name, value in rows.items()})
    resets, shape = setting_of(case, variant)["horizons_per_env_reset"] == 1, (HORIZON + 1, ENVS)
    found["reward"] = torch.cat([torch.zeros(1, ENVS, dtype=torch.float64), found["reward"][:-1, :, 0]])
    found |= {name: torch.zeros(shape, dtype=torch.bool) for name in ("terminated", "truncated", "is_first")}
    found["truncated"][-1], found["is_first"][0] = resets, resets or update == 0
    obs, flags = {"state": found["obs"][..., :OBS]}, ("action", "reward", "terminated", "truncated", "is_first")
    extras = {"value": found["value"][:-1, :, 0], "logprob": found["logprob"][:-1, :, 0]}
    carry, past = {}, {}
    if "h" in found:
        clock = (torch.arange(update * HORIZON, (update + 1) * HORIZON + 1) % (period or 1)).unsqueeze(-1).expand(shape)
        found |= {CLOCK: clock} if period else {}
        for name in ("h", "c"):
            stored, length = found[name], HORIZON // (len(found[name]) - 1)
            found[name] = torch.full((*shape, stored.shape[-1]), math.nan, dtype=torch.float64)
            found[name][::length] = stored
            if period:  # rl8 has stored the carry after a reset, we store the one before it
                found[name][:-1][clock[:-1] == 0] += 1
        carry = {name: found[name][-1] for name in ("h", "c", CLOCK) if name in found}
        extras |= {name: found[name][:-1] for name in carry}
        before = content[f"{variant}/rows/action"][max(0, update - 1), :, -2]
        past = {"action": torch.from_numpy(before).unsqueeze(0), "is_first": found["is_first"][:0]}
    steps = Trajectory({k: v[:-1] for k, v in obs.items()}, *(found[name][:-1] for name in flags), extras, past=past)
    last = Trajectory({k: v[-1] for k, v in obs.items()}, *(found[name][-1] for name in flags), carry=carry)
    return Batch(steps, last, update * HORIZON * ENVS)


def make_orders(case: str, variant: str, update: int) -> KnownOrder:
    """Return rl8's orders; it numbers samples, or sequences, by environment first."""
    order = arrays(f"rl8_{case}")[f"{variant}/orders"][update]
    count = order.shape[1] // ENVS
    return KnownOrder(order % count * ENVS + order // count)


@pytest.mark.parametrize(("case", "variant"), CASES)
def test_ppo_updates_match_rl8_in_float64(case: str, variant: str) -> None:
    """Losses, KL divergence and weights of consecutive updates."""
    learner, steps = make_learner(case, variant), 0
    content = part(arrays(f"rl8_{case}"), f"{variant}/")
    initial = part(arrays(f"rl8_{case}"), "initial/")
    sizes = [value.size for value in initial.values()]
    period = getattr(learner.config, "steps_per_state_reset", None)
    # rl8 divides rewards that are not normalized by 1 + 1e-8.
    within = 1e-11 if learner.config.normalize_reward else 1e-7
    for update, final in enumerate(content["final"]):
        metrics = learner.update(make_batch(case, variant, update, period), make_orders(case, variant, update))
        logged = {name: float(value[update]) for name, value in part(content, "logged/").items()}
        expected = {"Loss/policy_loss": -logged["losses/policy"], "Loss/value_loss": logged["losses/vf"]}
        expected |= {"Loss/entropy_loss": -logged["losses/entropy"], "Info/approx_kl": logged["monitors/kl_div"]}
        expected |= {"Info/ent_coef": logged["coefficients/entropy"], "Info/learning_rate": content["lr"][update]}
        check_numbers(metrics, expected, within)
        steps += logged["steps"]
        assert learner.updates == steps
        parts = np.split(final, np.cumsum(sizes)[:-1])
        weights = {k: w.reshape(v.shape) for (k, v), w in zip(initial.items(), parts, strict=True)}
        check_state(learner.agent, ours(case, weights), within)


# Mutants --------------------------------------------------------------------------------------------------------------

CHECK = test_ppo_updates_match_rl8_in_float64
BASE, RAW = partial(CHECK, "discrete", "minibatches"), partial(CHECK, "discrete", "raw")
IN_ORDER, SUMMED = partial(CHECK, "discrete", "in_order"), partial(CHECK, "discrete", "accumulate")
CAP, WHOLE = partial(CHECK, "discrete", "value_cap"), partial(CHECK, "discrete", "whole_rollout")
STATES = partial(CHECK, "recurrent_discrete", "reset_every_sequence")
SEQUENCES = partial(CHECK, "recurrent_discrete", "in_order")

UPDATE, DRAW, STEPS = "ppo.Learner.optimize", "ppo.Learner.draw", "ppo.Learner.take_steps"
SCALE, UNROLL = "RewardScaler.__call__", "ppo_recurrent.Agent.unroll"
MUTANTS: dict[str, Mutant] = {
    "advantages standardized in each minibatch": Mutant(UPDATE, swap("A.advantage_scope", '"minibatch"'), BASE),
    "advantages standardized unasked": Mutant(UPDATE, swap("A if B else None", "A"), RAW),
    "biased std of advantages": Mutant("standardize", swap("(A - 1).clamp(min=1)", "A"), BASE),
    "squared error": Mutant("ppo.value_loss", given(kind='"mse"'), BASE),
    "value loss without a cap": Mutant("ppo.value_loss", given(cap="None"), CAP),
    "cap with a gradient": Mutant("ppo.value_loss", swap("A.clamp(max=B)", "A + (A.clamp(max=B) - A).detach()"), CAP),
    "rewards scaled by all rollouts": Mutant(SCALE, swap('self.scope == "rollout"', "False"), BASE),
    "biased std of returns": Mutant("weighted_std", swap("(A - 1).clamp(min=1)", "A"), BASE),
    "rewards shifted": Mutant(SCALE, swap("reward / scale", "(reward - reward.mean()) / scale"), BASE),
    "returns of the future": Mutant("RewardScaler.reversed_returns", given(reward="reward.flip(0)"), BASE),
    "always shuffled": Mutant(DRAW, swap("rng if A else B", "np.random.default_rng(0)"), IN_ORDER),
    "ordered by time step": Mutant("order_on_host", swap("np.argsort(A, kind=B)", "np.arange(len(used))"), IN_ORDER),
    "a step for each minibatch": Mutant(STEPS, swap("size or A", "1"), SUMMED),
    "whole rollout in halves": Mutant("minibatches", swap("size or A", "A // 2"), WHOLE),
    "sequences ordered by time": Mutant(
        "order_on_host", swap("np.argsort(A, kind=B)", "np.arange(len(used))"), SEQUENCES
    ),
    "state never reset by the clock": Mutant(UNROLL, swap("forget | A", "forget"), STATES),
    "state reset before the value after the rollout": Mutant(
        "ppo_recurrent.Learner.prepare_obs", swap("torch.ones_like(A)", "A"), STATES
    ),
    "clock of the first row in the whole sequence": Mutant(
        "SequenceRows.at", swap("A[CLOCK][rows]", "A[CLOCK][first].repeat_interleave(self.length, -1)"), STATES
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_rl8_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
