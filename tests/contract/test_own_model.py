"""Networks and action distributions of the user: `algo.model`, `distribution.type=package.module:Class`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flows.cli.main import main
from flows.config.compose import compose
from rlcore import conformance, plugins
from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.own_distribution import OwnHead
from rlcore.algorithms.on_policy.ppo_recurrent.learner import Agent, Seen
from rlcore.compiled import machine_code
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.evaluation.policy import load_policy
from rlcore.nn.action_masks import Masks
from rlcore.nn.network_keys import ActorConfig
from rlcore.spec import ACTION, ActionSpec, ArraySpec, Binding, EnvSpec
from rlcore.train.trainer import Trainer
from tests.contract.checks import conformance_cases
from tests.probes import own_model
from tests.soaking import heavy

OWN = "tests.probes.own_model"
SMALL = ["env.num_envs=3", "env.max_episode_steps=12", "algo.rollout_steps=16", "algo.total_steps=1000"]
NETS = {"ppo": "Net", "a2c": "Net", "ppo_recurrent": "Recurrent"}


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes are a plugin that the user has named."""
    monkeypatch.setenv(plugins.VARIABLE, OWN)


def config(*overrides: str, algo: str = "ppo", env_id: str = "CartPole-v1") -> RunConfig:
    return compose([f"exp={algo}", *SMALL, f"env.id={env_id}", *overrides])[0]


@pytest.mark.slow
@heavy
@pytest.mark.parametrize(("algo", "check"), conformance_cases("ppo_recurrent", "ppo", "a2c"))
def test_own_model_passes_conformance(check: Callable[[RunConfig], None], algo: str) -> None:
    more = ["algo.per_rank_sequence_length=8"] if algo == "ppo_recurrent" else []
    check(config(f"algo.model={OWN}:{NETS[algo]}", "algo.normalize_obs=true", *more, algo=algo))


@pytest.mark.parametrize(("algo", "net"), NETS.items())
def test_trainer_resumes_own_model_exactly(algo: str, net: str) -> None:
    conformance.interrupted_equals_uninterrupted(config(f"algo.model={OWN}:{net}", algo=algo))


def agent(name: str, *overrides: str, seed: int = 0, algo: str = "ppo") -> ActorCritic:
    run = config(f"algo.model={OWN}:{name}", *overrides, algo=algo)
    kind = Agent if algo == "ppo_recurrent" else ActorCritic
    spec = Trainer(run).envs.spec
    algorithm: Any = run.algo
    return kind(algorithm, spec, "auto", torch.Generator().manual_seed(seed))


def test_actor_critic_computes_own_network() -> None:
    own, obs = agent("Net", "algo.model_config.units=5"), torch.randn(7, 4)
    with torch.no_grad():
        policy, value = own({"state": obs})
        features, wanted = own.model.net({"state": obs})  # type: ignore[union-attr]
        logits = torch.nn.functional.linear(features, own.head.linear.weight, own.head.linear.bias)  # type: ignore[union-attr,arg-type]
    expected = torch.distributions.Categorical(logits=logits)
    action = expected.sample()
    assert features.shape == (7, 5)
    torch.testing.assert_close(policy.logprob(action.unsqueeze(-1)), expected.log_prob(action))
    torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize("name", ["Net", "torch_module"])
def test_own_model_code_is_no_part_of_a_known_cache_key(name: str) -> None:
    facts = [machine_code.Facts({}, 0, list, [made_of]) for made_of in (agent(name), ActorCritic.forward)]
    assert [len(each.names([torch.ones(2)])) for each in facts] == [0, 2]


def test_own_distribution_code_is_no_part_of_a_known_cache_key() -> None:
    own = Trainer(config(f"distribution.type={OWN}:Laplace", env_id="Pendulum-v1")).learner.agent
    assert machine_code.Facts({}, 0, list, [own]).names([torch.ones(2)]) == []


def test_own_model_weights_depend_only_on_seed() -> None:
    torch.manual_seed(1)
    first, before = agent("Net", seed=3), torch.get_rng_state()
    second, third = agent("Net", seed=3), agent("Net", seed=4)
    same, other = (each.state_dict()["model.net.policy.weight"] for each in (second, third))
    assert torch.equal(first.state_dict()["model.net.policy.weight"], same)
    assert not torch.equal(same, other)
    assert torch.equal(before, torch.get_rng_state())


def test_unroll_equals_loop_with_resets() -> None:
    own: Any = agent("Recurrent", algo="ppo_recurrent")
    length, count = 5, 3
    obs, action = torch.randn(length, count, 4), torch.randint(2, (length, count, 1, 1))
    is_first = torch.zeros(length, count, dtype=torch.bool)
    is_first[2, 1] = is_first[0, 2] = True
    carry = {name: torch.randn(count, 16) for name in ("h", "c")}
    net, state, values = own.model.net, dict(carry), list[Tensor]()
    with torch.no_grad():
        for t in range(length):
            state = {name: torch.where(is_first[t].unsqueeze(-1), 0.1, part) for name, part in state.items()}
            past = torch.nn.functional.one_hot(action[t, :, 0, 0], 2).float() * ~is_first[t].unsqueeze(-1)
            _, value, state = net({"state": obs[t], "past_action": past}, state)
            values.append(value)
        seen = Seen({"state": obs.flatten(0, 1), ACTION: action.flatten(0, 1)}, is_first.flatten(), carry)
        _, found, after = own.unroll(seen)
    torch.testing.assert_close(found, torch.cat(values))
    torch.testing.assert_close(after, state)


def test_own_model_normalizes_observations() -> None:
    training = Trainer(config(f"algo.model={OWN}:Net", "algo.normalize_obs=true", "algo.obs_clip=3"))
    steps, _ = training.collector.collect(16)
    seen = steps.obs["state"].double().flatten(0, 1).clone()
    training.learner.agent.observe(steps.obs, training.ranks)
    own: Any = training.learner.agent
    given: list[Tensor] = []
    own.model.net.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]["state"]))
    own({"state": steps.obs["state"][0]})
    expected = ((seen[:3] - seen.mean(0)) / seen.std(0, correction=0)).clamp(-3, 3)
    torch.testing.assert_close(given[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_own_model_instance_is_copied(tmp_path: Path) -> None:
    run = config()
    net = own_model.Net({"state": Trainer(run).envs.spec.obs["state"]}, None)
    weight = net.policy.weight.clone()
    training = Trainer(dataclasses.replace(run, algo=dataclasses.replace(run.algo, model=net)))
    loaded: Any = training.learner.agent
    assert torch.equal(loaded.model.net.policy.weight, weight)
    training.collect()
    training.update()
    assert torch.equal(net.policy.weight, weight)
    assert not torch.equal(loaded.model.net.policy.weight, weight)
    path = training.save(tmp_path)
    again = Trainer(training.config).load(path)
    assert torch.equal(again.learner.agent.model.net.policy.weight, loaded.model.net.policy.weight)
    with pytest.raises(
        UserError, match=r"Net \(instance\): the policy was trained with an object that a program passed"
    ):
        load_policy(path)
    both = dataclasses.replace(run.algo, model=net, model_config={"units": 3})
    with pytest.raises(UserError, match="give either an instance, or the name of a class and algo.model_config"):
        Trainer(dataclasses.replace(run, algo=both))


MISTAKES = [
    ("ppo", [f"algo.model={OWN}:ColumnOfValues"], r"returned \(\[2, 16\], \[2, 1\]\)"),
    (
        "a2c",
        [f"algo.model={OWN}:WithoutValue"],
        r"forward must return features \[2, F\] and value \[2\] .*returned \[2",
    ),
    ("ppo", [f"algo.model={OWN}:OtherKey"], r"forward failed for \{'state': \[2, 4\]\} \(KeyError: 'position'\)"),
    ("ppo_recurrent", [f"algo.model={OWN}:OtherCarry"], r"and the carry \{h: \[2, 16\], c: \[2, 16\]\}"),
    ("ppo_recurrent", [f"algo.model={OWN}:BareCarry"], r"initial\(1\) must return the carry as a dict"),
    ("ppo_recurrent", [f"algo.model={OWN}:Net"], r"needs a recurrent network, but it has no method `initial`"),
    ("ppo", [f"algo.model={OWN}:Recurrent"], r"it is recurrent, but this algorithm needs a feed-forward network"),
    ("ppo", [f"algo.model={OWN}:not_a_module"], r"must create a torch.nn.Module, but returned a str"),
    ("ppo", [f"algo.model={OWN}:Nte"], r"algo.model=.*has no Nte"),
    (
        "ppo",
        ["algo.model=os.path:Net"],
        r"algo.model=os.path:Net: classes are imported only from modules that you name",
    ),
    ("ppo", ["algo.model=7"], r"algo.model=7: must be a text package.module:Class"),
    ("ppo", [f"algo.model={OWN}:Net", "algo.model_config.size=3"], r"unexpected keyword argument 'size'"),
    ("ppo", ["algo.model_config.units=3"], r"has no effect without algo.model"),
    ("ppo", [f"distribution.type={OWN}:WithoutEntropy"], r"the class has no entropy"),
    ("ppo", [f"distribution.type={OWN}:OtherNoise"], r"noise='gumbel' must be one of normal, uniform, exponential"),
    ("ppo", [f"distribution.type={OWN}:ScalarLogprob"], r"logprob must return torch.float32 \[2\] .*returned .*\[\]"),
    ("sac", [f"distribution.type={OWN}:Laplace"], r"not available for sac"),
]


@pytest.mark.parametrize(("algo", "overrides", "message"), MISTAKES, ids=[str(row[1]) for row in MISTAKES])
def test_train_refuses_broken_class(
    algo: str, overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    env = "env.id=Pendulum-v1" if "distribution" in overrides[0] else "env.id=CartPole-v1"
    assert main(["train", f"exp={algo}", *SMALL[:2], env, f"plugins=[{OWN}]", *overrides]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert list(tmp_path.iterdir()) == []


def test_train_refuses_masks_with_own_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    env = ["env.id=Taxi-v4", "env.action_mask_from_info=true"]
    assert main(["train", "exp=ppo", *SMALL[:2], *env, f"plugins=[{OWN}]", f"distribution.type={OWN}:Laplace"]) == 2
    sentence = (
        f"distribution.type={OWN}:Laplace: the class does not receive the action masks (action_mask) of Taxi-v4; give "
        "its constructor the argument `allowed`, or set algo.action_masks=false or distribution.type=auto"
    )
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_loaded_policy_needs_plugin_of_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Trainer(config(f"algo.model={OWN}:Net", f"plugins=[{OWN}]"))
    path = training.save(tmp_path)
    obs = torch.randn(5, 4).numpy()
    with torch.no_grad():
        policy, _ = training.learner.agent({"state": torch.from_numpy(obs)})
    assert (load_policy(path).predict(obs) == policy.mode().squeeze(-1).numpy()).all()
    monkeypatch.setenv(plugins.VARIABLE, "")
    with pytest.raises(UserError, match=rf"plugins=\[{OWN}\]: this run or model needs the plugin"):
        load_policy(path)


MASKED = ["exp=ppo", "env=batched", "env.id=Maze", f"env.wrapper._target_={OWN}.Maze", *SMALL, f"plugins=[{OWN}]"]


def test_own_distribution_obeys_masks_like_built_in_one() -> None:
    """The distribution of the probe does not use the code of the built-in one, but must give the same update."""
    own, built_in = (Trainer(compose([*MASKED, f"distribution.type={of}"])[0]) for of in (f"{OWN}:Choices", "auto"))
    for one in (own, built_in):
        for _ in range(3):  # the environment refuses forbidden actions
            one.collect()
            one.update()
    weights, expected = (dict(one.learner.agent.named_parameters()) for one in (own, built_in))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)
    assert own.evaluate(4)["returns"] == built_in.evaluate(4)["returns"]


@pytest.mark.parametrize("check", conformance.DISTRIBUTION_CHECKS, ids=lambda check: check.__name__)
def test_masked_distribution_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(compose([*MASKED, f"distribution.type={OWN}:Choices"])[0])


def parts(**masks: ArraySpec) -> EnvSpec:
    """Return the spec of an environment with two sub-actions, of two and three choices, and with these masks."""
    return EnvSpec("Parts", masks, ActionSpec("MultiDiscrete", (2,), "int64", (2, 3), (0, 0)))


def own_head(spec: EnvSpec) -> OwnHead:
    distribution, rng = f"{OWN}:Choices", torch.Generator()
    return OwnHead(4, spec.action, distribution, ActorConfig(), rng, torch.nn.Identity(), masked_by=spec)


def test_allowed_is_true_for_choices_without_mask() -> None:
    spec = parts(action_mask=ArraySpec((3,), "int8", kind="mask", binds=Binding(1)))
    masks = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8)
    policy: Any = own_head(spec).policy(torch.zeros(2, 5), Masks(spec, {"action_mask": masks}))
    allowed = policy.p > 0  # the probe gives each allowed choice a positive probability
    assert allowed.int().tolist() == [[1, 1, 1, 0, 1], [1, 1, 0, 1, 0]]


def test_own_distribution_refuses_masks_that_depend_on_a_choice() -> None:
    spec = parts(action_mask=ArraySpec((3,), "int8", kind="mask", binds=Binding(1, 0, (1,))))
    sentence = (
        "not available for the action masks (action_mask) of Parts, because a mask depends on the choice of another"
    )
    with pytest.raises(UserError, match=re.escape(f"distribution.type={OWN}:Choices: {sentence}")):
        own_head(spec)


def test_loaded_policy_with_own_distribution_obeys_masks(tmp_path: Path) -> None:
    training = Trainer(compose([*MASKED, f"distribution.type={OWN}:Choices"])[0])
    mask = torch.eye(4)[torch.arange(8) % 4]  # one allowed action each
    obs = {"state": torch.randn(8, 1).numpy(), "action_mask": mask.numpy().astype("float32")}
    assert load_policy(training.save(tmp_path)).predict(obs).tolist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("check", conformance.DISTRIBUTION_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["Laplace", "auto"])
def test_distribution_passes_conformance(check: Callable[[RunConfig], None], kind: str) -> None:
    given = f"distribution.type={OWN}:Laplace" if kind == "Laplace" else "distribution.type=auto"
    check(config(given, env_id="Pendulum-v1"))


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (conformance.probabilities_sum_to_one, "LogprobWithoutScale"),
        (conformance.samples_match_logprob, "WideSamples"),
        (conformance.entropy_matches_samples, "WrongEntropy"),
        (conformance.first_ratio_is_one, "RandomLogprob"),
    ],
)
def test_conformance_rejects_broken_distribution(check: Callable[[RunConfig], None], broken: str) -> None:
    with pytest.raises(AssertionError):
        check(config(f"distribution.type={OWN}:{broken}", env_id="Pendulum-v1"))


def test_laplace_equals_torch_distribution() -> None:
    own: Any = Trainer(config(f"distribution.type={OWN}:Laplace", env_id="Pendulum-v1")).learner.agent
    obs = {"state": torch.randn(6, 3)}
    with torch.no_grad():
        policy, _ = own(obs)
        mean, log_scale = own.head(own.actor(own.encoder(obs))).chunk(2, -1)
    expected, action = torch.distributions.Laplace(mean, log_scale.exp()), torch.randn(6, 1)
    torch.testing.assert_close(policy.logprob(action), expected.log_prob(action).sum(-1))
    torch.testing.assert_close(policy.entropy(), expected.entropy().sum(-1))
