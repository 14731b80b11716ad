"""Write golden values of Dreamer V3.5: results of its author's code of 2025 for given network outputs and gradients.

    git clone https://github.com/danijar/dreamerv3 && git -C dreamerv3 checkout f8817c4040cebada9bb9712554b0234c70c291d5
    pip install jax==0.4.38 jaxlib==0.4.38 optax==0.2.4 chex==0.1.88
    python -m tests.golden.makers.dreamer_v3_5_author dreamerv3

author_dreamer_v3_5.npz    inputs, and under `expected/` the losses, returns, gradients, parameters after each step of
                           the optimizer, and outputs of RMSNorm

The author's functions and methods are executed unchanged, but without his packages: `Author` takes them from the files
of the checkout. All values are in float64.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import optax

from tests.golden.makers.files import write_arrays

jax.config.update("jax_enable_x64", True)

AGENT, NETS, OUTS, HEADS, OPT, UTILS = (
    "dreamerv3/agent.py",
    *(f"embodied/jax/{name}.py" for name in ("nets", "outs", "heads", "opt", "utils")),
)
SETTINGS = {"horizon": 20.0, "lmbda": 0.9, "coef": 0.03, "slowreg": 0.5, "unimix": 0.01, "min_std": 0.1, "max_std": 1.0}
OPTIMIZER = {"lr": 0.02, "agc": 0.3, "eps": 1e-20, "beta1": 0.9, "beta2": 0.999, "warmup": 3}
NVEC, HORIZON, COUNT, BINS, SIZE = (3, 2), 5, 4, 15, 2
SCALES = {"wide": (-1.25, 4.0), "narrow": (0.1, 0.3)}  # percentiles before the step; narrow: S has its lower limit


class Author:
    """Functions and classes of the author's files, which are executed one by one instead of being imported.

    Args:
        folder: checkout of his repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, file: str, *names: str, **given: Any) -> list[Any]:
        """Return functions, classes and methods (`Class.method`) of a file; `given` are further global names of it."""
        known = {"jax": jax, "jnp": jnp, "optax": optax, "chex": chex, "re": re, "adc": jax.ad_checkpoint}
        scope: dict[str, Any] = known | {"f32": jnp.float64, "i32": jnp.int32, "sg": jax.lax.stop_gradient} | given
        for name in names:
            nodes: list[Any] = ast.parse((self.folder / file).read_text()).body
            for part in name.split("."):
                (node,) = (each for each in nodes if getattr(each, "name", None) == part)
                nodes = node.body
            exec(compile(ast.Module([node], []), file, "exec"), scope)
        return [scope[name.rpartition(".")[2]] for name in names]


class Variable:
    """Stored value of the author's `Normalize`."""

    def __init__(self, value: float) -> None:
        self.value = jnp.float64(value)

    def read(self) -> Any:
        return self.value

    def write(self, value: Any) -> None:
        self.value = value


def normalize(author: Author, low: float, high: float) -> Any:
    """Return the scale of returns with the author's settings and given percentiles."""
    names = ("__call__", "update", "stats", "_perc", "_update")
    methods = author.load(
        UTILS, *(f"Normalize.{name}" for name in names), internal=SimpleNamespace(get_data_axes=lambda: ())
    )
    scale: Any = type("Normalize", (), dict(zip(names, methods, strict=True)))()
    settings = {"impl": "perc", "rate": 0.01, "limit": 1.0, "perclo": 5.0, "perchi": 95.0, "debias": False}
    vars(scale).update(settings, lo=Variable(low), hi=Variable(high))
    return scale


class Plain:
    """Normalization that changes nothing (`impl: none` in the author's config)."""

    def __call__(self, *_: Any) -> tuple[float, float]:
        return 0.0, 1.0

    def stats(self) -> tuple[float, float]:
        return 0.0, 1.0


def first(x: Any) -> Any:
    """Exchange time and batch: our arrays are [T, N, ...], those of the author [N, T, ...]."""
    return jnp.swapaxes(jnp.asarray(x), 0, 1)


class Heads:
    """The author's distributions of given network outputs.

    Args:
        author: his code.
        grid: number of bins.
    """

    def __init__(self, author: Author, grid: int) -> None:
        outs = author.load(OUTS, "Output", "Agg", "Normal", "Binary", "Categorical", "TwoHot")
        self.outs: Any = SimpleNamespace(**{each.__name__: each for each in outs})
        (symexp,) = author.load(NETS, "symexp")
        nets = SimpleNamespace(symexp=symexp, Linear=None)
        self.twohot, self.normal = author.load(
            HEADS, "Head.symexp_twohot", "Head.bounded_normal", nets=nets, outs=self.outs
        )
        self.bins = grid

    def number(self, logits: Any) -> Any:
        """Return the distribution of a reward or value."""
        return self.twohot(self._head(lambda x: x, bins=self.bins), logits)

    def policy(self, outputs: Any, continuous: bool) -> dict[str, Any]:
        """Return the policy of network outputs [..., A]."""
        if continuous:
            parts = iter(jnp.split(outputs, 2, -1))
            limits = {"minstd": SETTINGS["min_std"], "maxstd": SETTINGS["max_std"]}
            return {"action": self.outs.Agg(self.normal(self._head(lambda _: next(parts), **limits), None), 1)}
        logits = jnp.split(outputs, np.cumsum(NVEC)[:-1], -1)
        return {str(i): self.outs.Categorical(part, SETTINGS["unimix"]) for i, part in enumerate(logits)}

    def continues(self, logits: Any) -> Any:
        """Return the probability that the episode continues."""
        return self.outs.Binary(logits).prob(1)

    @staticmethod
    def _head(layer: Any, **settings: Any) -> Any:
        space = SimpleNamespace(discrete=False, shape=())
        return SimpleNamespace(space=space, kw={}, sub=lambda *_, **__: layer, **settings)


def of_imagined(author: Author, given: dict[str, Any], scale: str, kind: str, contdisc: bool) -> dict[str, Any]:
    """Return actor and critic losses on imagined steps with their gradients, λ-returns and percentiles."""
    heads, continuous = Heads(author, BINS), kind == "continuous"
    imag_loss, _ = author.load(AGENT, "imag_loss", "lambda_return")
    action = first(given[f"{kind}/action"])
    act = {"action": action} if continuous else {str(i): action[..., i] for i in range(len(NVEC))}

    def losses(policy: Any, value: Any) -> Any:
        moments = normalize(author, *SCALES[scale])
        found, more, _ = imag_loss(
            act,
            heads.number(first(given["reward"])).pred(),
            heads.continues(first(given["continue"])),
            heads.policy(first(policy), continuous),
            heads.number(first(value)),
            heads.number(first(given["slow"])),
            moments,
            Plain(),
            Plain(),
            update=True,
            contdisc=contdisc,
            slowtar=False,
            horizon=SETTINGS["horizon"],
            lam=SETTINGS["lmbda"],
            actent=SETTINGS["coef"],
            slowreg=SETTINGS["slowreg"],
        )
        results = {"returns": first(more["ret"]), "low": moments.lo.read(), "high": moments.hi.read()}
        return found["policy"].mean(), found["value"].mean(), results

    policy, value = given[f"{kind}/policy"], given["value"]
    found = losses(policy, value)
    return found[2] | {
        "policy": found[0],
        "value": found[1],
        "gradient/policy": jax.grad(lambda outputs: losses(outputs, value)[0])(policy),
        "gradient/value": jax.grad(lambda outputs: losses(policy, outputs)[1])(value),
    }


def of_replayed(author: Author, given: dict[str, Any]) -> dict[str, Any]:
    """Return the critic loss on replayed sequences and its gradient."""
    heads = Heads(author, BINS)
    repl_loss, _ = author.load(AGENT, "repl_loss", "lambda_return")
    last, terminated, reward, boot = (first(given[name]) for name in ("last", "terminated", "reward", "bootstrap"))

    def loss(value: Any) -> Any:
        number, slow = (heads.number(first(logits)) for logits in (value, given["slow"]))
        how = {"slowreg": SETTINGS["slowreg"], "horizon": SETTINGS["horizon"], "lam": SETTINGS["lmbda"]}
        return repl_loss(last, terminated, reward, boot, number, slow, Plain(), slowtar=False, **how)[0][
            "repval"
        ].mean()

    return {"loss": loss(given["value"]), "gradient": jax.grad(loss)(given["value"])}


def of_optimizer(author: Author, parameters: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters after each step of the author's optimizer."""
    names = ("clip_by_agc", "scale_by_rms", "scale_by_momentum")
    opt = SimpleNamespace(**dict(zip(names, author.load(OPT, *names), strict=True)))
    (make,) = author.load(AGENT, "Agent._make_opt", embodied=SimpleNamespace(jax=SimpleNamespace(opt=opt)))
    optimizer = make(None, **OPTIMIZER)
    state, found = optimizer.init(parameters), []
    for step in range(len(next(iter(gradients.values())))):
        now = {name: gradient[step] for name, gradient in gradients.items()}
        updates, state = optimizer.update(now, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        found.append(parameters)
    return {name: jnp.stack([each[name] for each in found]) for name in parameters}


def of_norm(author: Author, given: dict[str, Any]) -> dict[str, Any]:
    """Return RMSNorm with SiLU of x, and the gradients of its product with `slope`."""
    (call,) = author.load(NETS, "Norm.__call__", ensure_dtypes=lambda x: x)

    def norm(x: Any, scale: Any) -> Any:
        own = SimpleNamespace(impl="rms", axis=(-1,), eps=1e-4, _scale=lambda *_: scale)
        return jax.nn.silu(call(own, x))

    def product(x: Any, scale: Any) -> Any:
        return (given["slope"] * norm(x, scale)).sum()

    of_x, of_scale = jax.grad(product, (0, 1))(given["x"], given["scale"])
    return {"y": norm(given["x"], given["scale"]), "gradient/x": of_x, "gradient/scale": of_scale}


def inputs() -> dict[str, dict[str, np.ndarray]]:
    """Return all inputs: part -> name -> array."""
    rng = np.random.default_rng(5)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    def number(*shape: int) -> np.ndarray:
        bell = -0.15 * (np.arange(BINS) - BINS // 2) ** 2  # otherwise the outermost bins decide all means
        return 8 * bell + normal(*shape, BINS)

    rows = HORIZON + 1
    last = np.zeros((rows, COUNT), bool)
    last[2, 0] = last[1, 1] = last[-1, 2] = last[-2, 3] = True
    terminated = np.zeros((rows, COUNT), bool)
    terminated[2, 0] = terminated[-2, 3] = True  # the other ends are truncations
    return {
        "imagined": {
            "reward": number(rows, COUNT),
            "value": number(rows, COUNT),
            "slow": number(rows, COUNT),
            "continue": normal(rows, COUNT, scale=2.0),
            "discrete/policy": normal(rows, COUNT, sum(NVEC)),
            "discrete/action": np.stack([rng.integers(0, n, (rows, COUNT)) for n in NVEC], -1),
            "continuous/policy": normal(rows, COUNT, 2 * SIZE),
            "continuous/action": normal(rows, COUNT, SIZE, scale=0.7),
        },
        "replayed": {
            "last": last,
            "terminated": terminated,
            "reward": normal(rows, COUNT),
            "bootstrap": normal(rows, COUNT, scale=3.0),
            "value": number(rows, COUNT),
            "slow": number(rows, COUNT),
        },
        "parameters": {"matrix": normal(4, 3), "small": normal(5, scale=1e-5), "vector": normal(6, scale=0.1)},
        "gradients": {
            "matrix": normal(6, 4, 3) * np.array([0.01, 10.0, 1.0, 0.2, 3.0, 0.02])[:, None, None],
            "small": normal(6, 5, scale=0.1),
            "vector": normal(6, 6, scale=0.01) * (np.arange(6) > 0),  # one gradient is always 0
        },
        "norm": {"x": normal(7, 5), "scale": normal(5), "slope": normal(7, 5)},
    }


def main() -> None:
    """Write the fixture."""
    author, given = Author(Path(sys.argv[1])), inputs()
    parts = {name: {key: jnp.asarray(value) for key, value in part.items()} for name, part in given.items()}
    expected: dict[str, Any] = {"replayed": of_replayed(author, parts["replayed"])}
    for kind, scale, contdisc in (
        ("discrete", "wide", True),
        ("discrete", "narrow", True),
        ("continuous", "wide", False),
    ):
        expected[f"{kind}/{scale}"] = of_imagined(author, parts["imagined"], scale, kind, contdisc)
    expected["optimizer"] = of_optimizer(author, parts["parameters"], parts["gradients"])
    expected["norm"] = of_norm(author, parts["norm"])
    content = {f"{name}/{key}": value for name, part in given.items() for key, value in part.items()}
    content |= {f"expected/{name}/{key}": value for name, part in expected.items() for key, value in part.items()}
    content |= {f"settings/{name}": value for name, value in SETTINGS.items()}
    content |= {f"optimizer/{name}": value for name, value in OPTIMIZER.items()}
    content |= {f"scales/{name}": value for name, value in SCALES.items()}
    write_arrays("author_dreamer_v3_5", {name: np.asarray(value) for name, value in content.items()})


if __name__ == "__main__":
    main()
