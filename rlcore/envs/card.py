"""Environment card: measured properties of one environment, such as its spaces, package versions and tier.

The tier is the method by which unfinished episodes continue exactly when a run is resumed. With "snapshot", the state
of the environment is saved and restored. With "replay", the episode is played again from its seed and actions. With
"boundary", unfinished episodes are truncated at every scheduled checkpoint. To measure the tier, the environment is
played with random actions.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib.metadata
import inspect
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore import streams
from rlcore.config.groups import EnvConfig
from rlcore.config.run import AlgorithmConfig
from rlcore.envs.drawing import SparselyDrawn
from rlcore.envs.exact.recording import Build, random_action
from rlcore.envs.exact.tier import TierReport, measure_tier, report_failing, try_boundary
from rlcore.envs.make import EnvSettings, make, suite_for
from rlcore.envs.masks import NO_ACTION, count_without_action
from rlcore.envs.spaces import obs_spaces, spec_of
from rlcore.envs.suites.registry import suite_with
from rlcore.envs.suites.suite import Suite
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.episodic import TIERS
from rlcore.envs.vector.limited import limited_env
from rlcore.envs.vector.watchdog import StepTimeLimit, Watchdog, step_limit
from rlcore.envs.wrappers import layers, time_limit
from rlcore.errors import EnvironmentFault, UserError
from rlcore.user_code import user_code

log = logging.getLogger(__name__)

FORMAT = 1
TRIED_STEPS = 100
SEED = 0  # seed of the measured episodes; fixed, because all runs on the environment share one card


@user_code()
def environment_card(config: EnvConfig | EnvSettings) -> dict[str, Any]:
    """Measure an environment and return its environment card.

    The environment is built and its spaces are read. Then episodes of random actions are recorded for at most three
    seconds of processor time. Each recorded episode is replayed several times, and every replay is compared with the
    recording. If steps are slow, for example because the observations are images, the recording and its replays
    together take about six times as long as the recording.

    Args:
        config: config group `env`, or `EnvSettings` created from it.

    Returns:
        The card, which consists of JSON values. The value of `spec` is the result of `EnvSpec.to_json`. The values of
        `tier` and `fresh_instance` can be passed to `make_vector_env` as arguments with these names.

    Raises:
        UserError: The environment cannot be created, or no agent of this project supports its spaces.
        EnvironmentFault: The environment raises an error under random actions, or returns an invalid value.
    """
    settings = EnvSettings.of(config)
    began = time.perf_counter()
    card: dict[str, Any] = {"format": FORMAT, "settings": dataclasses.asdict(settings)} | _read_claims(config)
    suite, env_id = suite_for(settings)
    if suite.batched(env_id, settings.wrapper) is not None:
        report, out_of_bounds = _check_batched(config, suite.place(env_id)), dict[str, int]()
    else:
        out_of_bounds, without_action = _play_checked(config)
        report = _measure(config, settings, suite)
        report = dataclasses.replace(report, without_action=without_action)
    masked_out = [f"in {report.without_action} tested states, {NO_ACTION}"] if report.without_action else []
    card |= {
        "time_limit_checked": _limit_checked(card["max_episode_steps"], report),
        "reward_seen": list(report.reward),
        "deterministic": report.deterministic,
        "tier": report.tier,
        "tier_reason": report.reason,
        "fresh_instance": report.fresh_instance,
        "findings": [*report.findings, *masked_out],
        "tested": {
            "episodes": report.episodes,
            "steps": report.steps,
            "capped_by": report.capped,
            "longest_episode": report.longest,
            "seed": SEED,
            "values_out_of_bounds": out_of_bounds,
            "states_without_action": report.without_action,
            "seconds": round(time.perf_counter() - began, 2),
        },
    }
    return json.loads(json.dumps(card, allow_nan=False))  # lists instead of tuples, as in a card read from a file


@user_code()
def card_once(config: EnvConfig | EnvSettings, measure: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the environment card; it is measured once per process, and again if something changes that it depends on.

    Args:
        config: config group `env`, or `EnvSettings` created from it.
        measure: function that measures the card; None: `environment_card`.

    Returns:
        A copy of the card. It is not stored if `card_key` has no key for the environment.

    Raises:
        UserError: As `environment_card`.
        EnvironmentFault: As `environment_card`.
    """
    key = card_key(config)
    card = None if key is None else _MEASURED.get(key)
    if card is None:
        card = environment_card(config) if measure is None else measure()
        if key is not None:
            _MEASURED[key] = card
    return copy.deepcopy(card)


_MEASURED: dict[str, dict[str, Any]] = {}


@user_code()
def check_first_steps(config: EnvConfig) -> None:
    """Check two steps of a batched environment; do nothing for other environments.

    This takes milliseconds. `environment_card` repeats the checks with more steps.

    Args:
        config: config group `env`.

    Raises:
        UserError: The environment breaks a rule in the docstring of `BatchedEnv`.
    """
    suite, env_id = suite_for(config)
    if suite.batched(env_id, config.wrapper) is None:
        return
    from rlcore.envs.exact import batched  # imports torch, which worker processes do not need

    try:
        with _creating(config) as create:
            batched.check_first_steps(create, suite.place(env_id))
    except EnvironmentFault as fault:
        raise UserError(str(fault)) from fault


def _check_batched(config: EnvConfig | EnvSettings, place: str) -> TierReport:
    """Check a batched environment."""
    from rlcore.envs.exact.batched import check_batched  # imports torch, which worker processes do not need

    with _creating(config) as create:
        return check_batched(create, place)


@contextmanager
def _creating(config: EnvConfig | EnvSettings) -> Iterator[Callable[[int, str], Any]]:
    """Context manager with a function (number of copies, device) -> vectorized environment; it closes all of them."""
    with ExitStack() as stack:

        def create(num_envs: int, device: str) -> Any:
            envs = make_vector_env(config, num_envs=num_envs, seed=SEED, purpose="probe", device=device)
            return stack.enter_context(closing(envs))

        yield create


def _measure(config: EnvConfig | EnvSettings, settings: EnvSettings, suite: Suite) -> TierReport:
    watchdog = Watchdog(step_limit(config))
    try:
        return _tier(
            suite,
            lambda: StepTimeLimit(SparselyDrawn(watchdog.build(lambda: make(settings))), watchdog),
            settings.restart.attempts,
        )
    finally:
        watchdog.close()


def _tier(suite: Suite, build: Build, attempts: int) -> TierReport:
    """Measure the tier of an environment: the method by which unfinished episodes continue exactly in a resumed run.

    If the suite declares the tier "boundary" (unfinished episodes are truncated at checkpoints), other tiers are not
    tried. `attempts` is the number of restarts that the config allows after errors. If it is greater than 0 and the
    environment raises an error during the measurement, the tier is "boundary" as well.
    """
    try:
        return try_boundary(build, SEED, suite.tier_reason) if suite.tier == "boundary" else measure_tier(build, SEED)
    except Exception as error:
        if isinstance(error, UserError) or not attempts:
            raise
        return report_failing(error)


def _read_claims(config: EnvConfig | EnvSettings) -> dict[str, Any]:
    """Return the properties that the environment declares (id, spaces, time limit, …); no step is taken."""
    with limited_env(config) as limited:
        env = limited.env
        spec = spec_of(env)
        return {
            "id": spec.id,
            "layers": [type(layer).__name__ for layer in layers(env)],
            "packages": package_versions(config.id),
            "observation_space": {key: readable_space(space) for key, space in obs_spaces(env).items()},
            "action_space": readable_space(env.action_space),
            "keys": list(spec.obs),
            "spec": spec.to_json(),
            "max_episode_steps": time_limit(env),
            "endless": bool(getattr(env.unwrapped, "endless", False)),
            "reward_range": _declared_reward(env),
        }


def _play_checked(config: EnvConfig | EnvSettings) -> tuple[dict[str, int], int]:
    """Play random actions in a vectorized environment, which checks all returned values as it does in training.

    Return observation key -> number of values outside the bounds that the observation space declares, and the number of
    states in which action masks allow no action.
    """
    rng, without_action = streams.generator(SEED, "probe", 2), 0
    envs = make_vector_env(config, num_envs=1, seed=SEED, purpose="probe", tier="replay")
    try:
        arrival = envs.reset()
        for _ in range(TRIED_STEPS):
            without_action += count_without_action(envs.spec, arrival)
            obs = {key: values[0] for key, values in arrival.obs.items()}
            arrival = envs.step(np.asarray(random_action(envs.spec, rng, obs))[None])
    finally:
        envs.close()
    return envs.out_of_bounds, without_action


def refuse_without_action(algo: AlgorithmConfig, card: Mapping[str, Any]) -> None:
    """Raise UserError if action masks allowed no action in a tested state, unless the algorithm ignores this."""
    count = card.get("tested", {}).get("states_without_action", 0)
    if count and algo.needs_allowed_action:
        raise UserError(f"{card['id']}: in {count} of the states that make-env tested, {NO_ACTION}")


def warn_of_boundary(card: Mapping[str, Any]) -> None:
    """Log a warning if a card has the tier "boundary": every scheduled checkpoint truncates unfinished episodes."""
    if card["tier"] != "boundary":
        return
    exact = "with these truncations a resumed run is identical, bit for bit, to an uninterrupted one"
    if not card["deterministic"]:
        exact = (
            "it ignores the seed: two runs of one config differ, and a resumed run differs from an uninterrupted one"
        )
    log.warning(
        "%s can neither be saved nor replayed (%s): every scheduled checkpoint truncates its open episodes; %s",
        card["settings"]["id"],
        card["tier_reason"],
        exact,
    )


def card_key(config: EnvConfig | EnvSettings) -> str | None:
    """Return the key of an environment card in the cache: the SHA-256 of everything that can change the card.

    The hash includes the settings, the versions of Python and of the packages, the source code of the environment, and
    the source code of `rlcore.envs`. Return None if the source files of the environment cannot be located; the card is
    then not cached.
    """
    settings = EnvSettings.of(config)
    sources = source_files(settings)
    if sources is None:
        return None
    facts = {"format": FORMAT, "settings": dataclasses.asdict(settings), "python": sys.version}
    digest = hashlib.sha256(json.dumps(facts | {"packages": package_versions(settings.id)}, sort_keys=True).encode())
    for path in [*sources, *sorted(Path(__file__).parent.rglob("*.py"))]:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def source_files(settings: EnvSettings) -> list[Path] | None:
    """Return the sorted Python files that can contain the code of an environment's class and its base classes.

    For a class in a package, these are all files of the top-level package. For a class in a single module without a
    package, these are all modules in the folder of that module; if the folder is site-packages, it is that module only.
    Return None if a module or package has no file.
    """
    suite, env_id = suite_for(settings)
    makers = suite.sources(env_id)
    classes = [part for maker in makers for part in (inspect.getmro(maker) if inspect.isclass(maker) else (maker,))]
    files: set[Path] = set()
    for name in {part.__module__.partition(".")[0] for part in classes} - {"builtins", "typing", "abc"}:
        root = sys.modules.get(name)
        if root is None or getattr(root, "__file__", None) is None:
            return None
        path = Path(str(root.__file__)).resolve()
        if hasattr(root, "__path__"):
            files |= {file for place in root.__path__ for file in Path(place).resolve().rglob("*.py")}
        else:
            files |= {path} if "site-packages" in path.parts else set(path.parent.glob("*.py"))
    return sorted(files)


def package_versions(env_id: str) -> dict[str, str]:
    """Return package -> version for Gymnasium, NumPy and the package of an environment's game or physics engine."""
    versions = {"gymnasium": gymnasium.__version__, "numpy": importlib.metadata.version("numpy")}
    suite = suite_with(env_id)
    for name in suite.packages if suite is not None else ():
        try:
            versions[name.lower()] = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def readable_space(space: spaces.Space[Any]) -> str:
    """Describe a space in one line; for a Box, with the smallest lower bound and the largest upper bound."""
    if not isinstance(space, spaces.Box):
        return str(space)
    shape = "×".join(map(str, space.shape)) or "one number"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)  # bool has no number format
    text = f"Box {shape} {space.dtype}, {low.min():.5g} to {high.max():.5g}"
    uniform = (low == low.flat[0]).all() and (high == high.flat[0]).all()
    return text if uniform else f"{text} (bounds differ by element)"


def _limit_checked(limit: int | None, report: TierReport) -> str:
    if limit is None:
        return "no time limit"
    if report.longest > limit:
        return f"exceeded: one episode had {report.longest} actions"
    if limit in report.truncated_at:
        return "confirmed: an episode was truncated there"
    return "not reached by random actions"


def _declared_reward(env: gymnasium.Env) -> list[float | None] | None:
    declared = getattr(env.unwrapped, "reward_range", None)
    if declared is None:
        return None
    return [float(v) if math.isfinite(v) else None for v in declared]


def readable_card(card: dict[str, Any]) -> str:
    """Return the card as a short page of Markdown: a heading and two lists."""
    tested = card["tested"]
    low, high = card["reward_seen"]
    lines = [
        f"# {card['id']}",
        "",
        *(f"- Observation `{key}`: `{space}`" for key, space in card["observation_space"].items()),
        f"- Action: `{card['action_space']}`",
        f"- Longest episode: {_limit(card)}",
        f"- Rewards seen with random actions: {low:.4g} to {high:.4g}",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in card['packages'].items())}",
        "",
        "## Exactness",
        "",
        f"- Same seed and actions, same episode: {'yes' if card['deterministic'] else '**no**'}",
        f"- Resume: **{card['tier']}** – {TIERS[card['tier']]}"
        + ("; every episode in a newly built environment" if card["fresh_instance"] else ""),
    ]
    if card["tier_reason"]:
        lines.append(f"- Why not better: {card['tier_reason']}")
    lines += [f"- Note: {finding}" for finding in card.get("findings", ())]
    lines.append(
        f"- Tested with {tested['steps']} random actions in {tested['episodes']} episodes "
        f"(ended by the limit on {tested['capped_by']}), longest {tested['longest_episode']}, seed {tested['seed']}"
    )
    return "\n".join(lines) + "\n"


def _limit(card: dict[str, Any]) -> str:
    if card["max_episode_steps"] is None:
        return "no time limit"
    return f"{card['max_episode_steps']} actions ({card['time_limit_checked']})"
