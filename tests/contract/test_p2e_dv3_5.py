"""Plan2Explore on Dreamer V3.5: critics that learn from replayed sequences, with one optimizer for all of them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, segment_of
from rlcore.config.schema import arguments
from rlcore.functional.noise import Noise
from rlcore.train.trainer import Trainer
from tests.contract.test_dreamer_v3_latents_probe import draw_batches
from tests.contract.test_p2e import config
from tests.soaking import always, heavy

pytestmark = heavy

ALGO = "p2e_dv3_5_exploration"


def learner_and_segment(**changes: Any) -> tuple[Any, Segment]:
    """Return a learner after one gradient step, and the batch of this step, in which an episode begins."""
    learner: Any = (trainer := Trainer(config(ALGO, **changes), compiled=False)).learner
    (batch,) = draw_batches(trainer, 1)
    batch.steps.is_first[4, 0] = True
    return learner, segment_of(batch.steps, learner.agent.actor, learner.initial_state(batch))


@always
def test_recorded_steps_have_rewards_of_each_critic() -> None:
    """Row t of the intrinsic reward is the disagreement about the outcome of (state t, action t)."""
    learner, segment = learner_and_segment()
    task, exploring = learner.behaviors
    feat = torch.randn(*segment.reward.shape, learner.agent.world.feat_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(task.recorded_reward(task.critics[0], feat, segment), segment.reward[1:])
    intrinsic, extrinsic = exploring.critics
    assert torch.equal(exploring.recorded_reward(extrinsic, feat, segment), segment.reward[1:])
    inputs = torch.cat([feat[:-1], segment.before[1:]], -1)
    predictions = np.stack([member(inputs).detach().numpy() for member in learner.ensembles.members])
    found = exploring.recorded_reward(intrinsic, feat, segment)
    np.testing.assert_allclose(found.numpy(), predictions.var(0, ddof=1).mean(-1), rtol=1e-4)


def gradients(learner: Any, segment: Segment) -> dict[str, torch.Tensor]:
    """Return the gradients of the loss for the parameters of the world model, without those of detached heads."""
    world, kept = learner.agent.world, dict(learner.agent.world.named_parameters())
    kept = {name: p for name, p in kept.items() if not name.startswith(("reward", "continue"))}
    total = learner.loss(segment, Noise(0, "loss"))[0]
    found = torch.autograd.grad(total, list(kept.values()), materialize_grads=True)
    assert world.reward is not None
    return dict(zip(kept, found, strict=True))


@always
def test_task_reward_does_not_reach_world_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rewards change the losses of the critics, but not the gradient of encoder, decoder and state."""
    learner, segment = learner_and_segment(critic={"bins": 15, "outscale": 1.0})
    other = segment._replace(reward=segment.reward + 3)
    for one, two in zip(gradients(learner, segment).values(), gradients(learner, other).values(), strict=True):
        assert torch.equal(one, two)
    monkeypatch.setattr(type(learner), "detached_heads", frozenset({"reward", "continue"}))
    changed = zip(gradients(learner, segment).values(), gradients(learner, other).values(), strict=True)
    assert any(not torch.equal(one, two) for one, two in changed)


def test_each_critic_has_its_own_target_and_scale() -> None:
    learner, _ = learner_and_segment()
    parts, keys = ("critic", "target_critic", "moments"), ("intrinsic", "extrinsic")
    names = {f"{part}_exploration_{key}" for part in parts for key in keys}
    assert names | {"critic", "target_critic", "moments", "optimizer", "ensemble_optimizer"} <= {*learner.components()}
    intrinsic, extrinsic = learner.behaviors[1].scales
    assert intrinsic.high != extrinsic.high


def test_actor_follows_weighted_advantages() -> None:
    """The advantage of a step is Σᵢ wᵢ Aᵢ / Sᵢ, with w = 1/11 and 10/11 for the weights 0.1 and 1."""
    learner, segment = learner_and_segment()
    exploring, steps = learner.behaviors[1], list[Any]()
    states = ModelState(*(part.detach() for part in learner.model_terms(segment, Noise(0, "loss"))[0]))
    _, _, imagined = exploring.imagine_returns(states, Noise(0, "loss"))
    exploring.actor_optimizer.minimize = steps.append
    exploring.train_actor(imagined)
    expected = sum(
        weight * imagined[f"advantage_{key}"] / max(1.0, float(scale.high - scale.low))
        for key, weight, scale in zip(("intrinsic", "extrinsic"), (1 / 11, 10 / 11), exploring.scales, strict=True)
    )
    torch.testing.assert_close(steps[0]["advantage"], expected)


@pytest.mark.parametrize("phase", ["exploration", "finetuning"])
def test_keys_of_plan2explore_equal_those_of_dreamer_v3(phase: str) -> None:
    """The two config classes define the same keys, with the same defaults, help texts and allowed values."""
    one, two = (ALGORITHMS[f"p2e_dv{version}_{phase}"].Config for version in ("3", "3_5"))
    own = inspect.get_annotations(two).keys()
    assert own == inspect.get_annotations(one).keys() - {"amount_metrics"}
    keys = own - {"name", "learning_starts", "ensembles", "exported_components", "fine_tunes"}
    of_one, of_two = ({a.key: a for a in arguments(c) if a.key.split(".")[0] in keys} for c in (one, two))
    assert of_one == of_two and keys == {key.split(".")[0] for key in of_two}
    assert one.exported_components == two.exported_components
