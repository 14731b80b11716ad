"""Write golden values of Dreamer V3: results of its author's code of 2023 for given logits, states and actions.

    pip install --no-deps dreamerv3==1.5.0
    pip install jax==0.4.30 jaxlib==0.4.30 'numpy<2' optax tensorflow-probability==0.25.0
    pip install ruamel.yaml rich cloudpickle 'setuptools<81'

author_dreamer_v3.npz    `expected/`: every loss, weight, λ-return and gradient; the inputs are in
                         torchrl_dreamer_v3.npz (`dreamer_v3_torchrl`), which must be written first

The original methods are called unchanged; their networks are replaced by given logits or linear layers. Values
are in float64, except the percentiles, which the original computes in float32.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dreamerv3 import agent, jaxutils, nets
from dreamerv3 import ninjax as nj
from tensorflow_probability.substrates import jax as tfp

from tests.golden.makers.files import FOLDER, write_arrays

jax.config.update("jax_enable_x64", True)
jaxutils.COMPUTE_DTYPE = nets.f32 = jnp.float64


def of_model(given: dict[str, Any], options: dict[str, float]) -> dict[str, Any]:
    """Return the terms of the model loss, and the gradient of their sum with respect to each logit."""
    latents, classes = given["posterior"].shape[-2:]

    def state(logits: Any) -> dict[str, Any]:
        return rssm._stats("", logits.reshape(*logits.shape[:-2], -1))

    def terms(leaves: dict[str, Any]) -> dict[str, Any]:
        posterior, prior = state(leaves["posterior"]), state(leaves["prior"])
        reward = jaxutils.DiscDist(leaves["reward_logits"]).log_prob(given["reward"])
        seen = jaxutils.MSEDist(leaves["guess"], 1, "sum").log_prob(given["seen"])
        ends = tfp.distributions.Bernoulli(leaves["continue_logits"]).log_prob(1 - given["terminated"])
        return {
            "dynamic": options["dynamic"] * rssm.dyn_loss(posterior, prior, free=options["nats"]).mean(),
            "representation": options["representation"] * rssm.rep_loss(posterior, prior, free=options["nats"]).mean(),
            "reward": -reward.mean(),
            "reco": -seen.mean(),
            "continue": -ends.mean(),
        }

    names = ("posterior", "prior", "guess", "reward_logits", "continue_logits")
    leaves = {name: given[name] for name in names}
    rssm = Unlearned(nets.RSSM, _stoch=latents, _classes=classes, _unimix=options["unimix"])
    found = inside(terms, leaves)
    gradients = jax.grad(lambda leaves: sum(inside(terms, leaves).values()))(leaves)
    return found | {f"gradient/{name}": value for name, value in gradients.items()}


def of_imagined(given: dict[str, Any], options: dict[str, float], low: float, high: float) -> dict[str, Any]:
    """Return actor and critic losses on imagined states, λ-returns, weights, gradients and the return scale."""
    feat, choices = given["feat"], given["actor"].shape[-1]
    action = jax.nn.one_hot(given["action"], choices, dtype=jnp.float64)
    action = jnp.concatenate([action, action[:1]])  # the last is not part of any loss
    config = SimpleNamespace(
        horizon=1 / (1 - options["gamma"]),
        return_lambda=options["lmbda"],
        actent=options["coef"],
        imag_unroll=True,
        critic_slowreg="logprob",
        loss_scales=SimpleNamespace(actor=1.0, critic=1.0, slowreg=1.0),
    )

    def number(weight: Any) -> Any:
        return lambda rows: jaxutils.DiscDist(rows["feat"] @ weight + given["bell"])

    def rewards(rows: Any) -> Any:
        return number(given["reward"])(rows).mean()[1:]  # of the next states, as its agent has them

    def imagine() -> dict[str, Any]:
        def step(previous: dict[str, Any], _: Any) -> dict[str, Any]:
            return {"feat": feat[previous["row"][0] + 1], "row": previous["row"] + 1}

        rssm = SimpleNamespace(initial=lambda _: {"feat": None, "row": None}, img_step=step)
        heads = {"cont": lambda rows: tfp.distributions.Bernoulli(rows["feat"] @ given["ends"], dtype=jnp.float64)}
        world = Unlearned(agent.WorldModel, rssm=rssm, heads=heads, config=config)
        row = jnp.zeros(feat.shape[1], int)
        start = {"feat": feat[0], "row": row, "is_terminal": given["terminated"]}
        return world.imagine(lambda state: action[state["row"][0]], start, len(feat) - 1)

    def critic(weight: Any) -> Any:
        return Unlearned(agent.VFunction, rewfn=rewards, config=config, net=number(weight), slow=number(given["slow"]))

    def act(weight: Any) -> Any:
        scale = jaxutils.Moments(impl="perc_ema", decay=options["decay"], max=1.0, name="scale")
        scale.low.write(jnp.float32(low))
        scale.high.write(jnp.float32(high))

        def policy(rows: Any) -> Any:
            how = {"_dist": "onehot", "_unimix": options["unimix"], "_outscale": 1.0, "_outnorm": False}
            return Unlearned(nets.Dist, _shape=(choices,), **how).inner(rows["feat"] @ weight)

        parts: dict[str, Any] = {
            "critics": {"extr": critic(given["critic"])},
            "scales": {"extr": 1.0},
            "retnorms": {"extr": scale},
        }
        parts |= {"actor": policy, "grad": "reinforce", "config": config, "_metrics": lambda *_: {}}
        return Unlearned(agent.ImagActorCritic, **parts).loss(imagine())[0], (scale.low.read(), scale.high.read())

    def judge(weight: Any) -> Any:
        rows = imagine()
        return critic(weight).loss(rows, critic(given["critic"]).score(rows)[1])[0]

    policy, (followed_low, followed_high) = inside(act, given["actor"])
    rows = inside(lambda _: imagine(), None)
    return {
        "policy": policy,
        "value": inside(judge, given["critic"]),
        "returns": inside(lambda weight: critic(weight).score(rows)[1], given["critic"]),
        "weight": rows["weight"][:-1],
        "low": followed_low,
        "high": followed_high,
        "gradient/actor": jax.grad(lambda weight: inside(act, weight)[0])(given["actor"]),
        "gradient/critic": jax.grad(lambda weight: inside(judge, weight))(given["critic"]),
    }


class Unlearned:
    """Module of the original with given attributes and without parameters: a layer returns its input."""

    def __init__(self, module: Any, **attributes: Any) -> None:
        self.module = module
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        method = vars(self.module)[name]
        return getattr(method, "__wrapped__", method).__get__(self)

    def get(self, *_: Any, **__: Any) -> Any:
        return lambda x: x


def inside(function: Any, *given: Any) -> Any:
    """Return the result of a function within a context of the original modules."""
    return nj.pure(function)({}, jax.random.PRNGKey(0), *given)[0]


def main() -> None:
    """Write the fixture."""
    with np.load(FOLDER / "torchrl_dreamer_v3.npz") as file:
        rows = {name: jnp.asarray(file[name]) for name in file.files if not name.startswith("expected/")}

    def part(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in rows.items() if name.startswith(prefix)}

    options = {name: float(value) for name, value in part("settings/").items()}
    expected = {f"model/{name}": value for name, value in of_model(part("model/"), options).items()}
    for scale, (low, high) in part("scales/").items():
        found = of_imagined(part("imagined/"), options, float(low), float(high))
        expected |= {f"{scale}/{name}": value for name, value in found.items()}
    content = {f"expected/{name}": np.asarray(value) for name, value in expected.items()}
    write_arrays("author_dreamer_v3", content)


if __name__ == "__main__":
    main()
