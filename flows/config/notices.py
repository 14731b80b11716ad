"""Notices that are printed before training: settings without effect, and budgets that are rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from flows.config.overrides import IGNORED_HYDRA_KEYS
from flows.config.sheeprl_names import NAMES
from flows.config.yaml_files import config_folders
from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.stop import OLD_KEY
from rlcore.config.values import at, plain, spell
from rlcore.system.devices import cores

OWN_CLASS = "env.wrapper._target_"  # `rlcore.envs.suites.own.KEY`, whose module imports Gymnasium
OF_IMAGES = ("env.frame_stack", "env.frame_stack_dilation", "env.grayscale", "env.screen_size")


def notices(config: RunConfig, overrides: Sequence[str] = ()) -> Iterator[str]:
    """Yield the notices that are printed when a run starts.

    Args:
        config: the checked config.
        overrides: command-line arguments; a notice names each one that has no effect.

    Yields:
        Notices, each of which is a sentence.
    """
    yield from config.algo.notices(config)
    if config.dry_run:
        until = "training ends with the iteration of the first gradient step"
        yield f"dry_run=true: {until}; estimated times and sizes are those of the full run"
    yield from _budget_in_whole_iterations(config)
    yield from _extension(config)
    yield from _older_keys(config, overrides)
    yield from _switched_off(config, overrides)
    yield from _steps_of_each_training(config)
    if config.fabric.accelerator == "cpu" and config.fabric.ranks > cores():
        yield f"fabric.devices={config.fabric.ranks}: more processes than CPU cores ({cores()}), so training is slow"
    values = plain(config)
    unused: dict[str, list[str]] = {}  # reason -> settings
    for argument in (*arguments(RunConfig), *arguments(type(config.algo), "algo.")):
        value = at(values, argument.key)
        if argument.unused and value != plain(argument.default):
            unused.setdefault(argument.unused, []).append(f"{argument.key}={spell(value)}")
    if not config.algo.count_remembered(config):
        kept = f"{config.algo.name} has no replay buffer and uses every rollout once"
        for key in ("buffer.type", "buffer.prioritize_ends", "buffer.online"):
            if (value := at(values, key)) not in (False, "sequential"):
                unused.setdefault(kept, []).append(f"{key}={spell(value)}")
    yield from (f"{', '.join(settings)}: no effect ({reason})" for reason, settings in unused.items())
    yield from _id_that_stays(config.env.id, overrides)
    yield from _id_of_own_class(config, overrides)
    blind = at(values, "algo.cnn_keys.encoder") == []
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if blind and key in OF_IMAGES:
            yield f"{override}: no effect (it applies to images, and algo.cnn_keys.encoder=[] selects none)"
        if key.startswith(IGNORED_HYDRA_KEYS):
            yield f"{override}: no effect (Hydra only composes the config; run_dir sets the run directory)"
        group, _, last = key.rpartition(".")
        if group == "metric.logger" and last in NAMES["groups"][group]["removed"]:
            yield f"{override}: no effect (loggers copy the event log; run_dir and run_name set its folder)"


def _budget_in_whole_iterations(config: RunConfig) -> Iterator[str]:
    """Yield a notice if `algo.total_steps` is not a multiple of the policy steps of an iteration.

    The notice contains the number of policy steps that will be trained, which is rounded to iterations.
    """
    algo, width = config.algo, config.width
    trained = algo.budget(width)
    if algo.total_steps is not None and trained != algo.total_steps and not config.dry_run:
        rows = algo.collect_length * width
        count = algo.iterations(width)
        whole = f"{count:,} iteration{'s' * (count > 1)} of {rows:,}"
        yield f"algo.total_steps={algo.total_steps}: {trained:,} policy steps are trained, {whole}"


def _extension(config: RunConfig) -> Iterator[str]:
    """Yield a notice about the policy steps and the annealed values of an extended run (`checkpoint.extend_from`)."""
    if config.checkpoint.extend_from is None:
        return
    source, total = Path(config.checkpoint.extend_from), config.algo.total_steps
    done, annealed = int(source.name), [f"algo.{key}" for key in config.algo.annealing_keys if key.startswith("anneal")]
    values = (
        f"; {', '.join(annealed)}: annealed over the new budget, from {1 - done / total:.0%} of the initial value"
        if annealed and total
        else ""
    )
    end = "" if total is None else f" to {config.algo.budget(config.width):,}"
    yield f"continues the training of {source.parents[1]} from {done:,}{end} policy steps{values}"


def _older_keys(config: RunConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a notice if the command line contains `early_stop.*`, which was replaced by `stop`."""
    if older := [override for override in overrides if override.lstrip("+").startswith(f"{OLD_KEY}.")]:
        form = yaml.safe_dump(plain(config.stop), default_flow_style=True, sort_keys=False, width=math.inf).strip()
        yield f"{' '.join(older)}: older form of stop='{form}'"


def _switched_off(config: RunConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a notice if compilation or model registration is disabled by a config file and not by the command line.

    Files of SheepRL do this, and users may not notice it.
    """
    off = {
        "algo.compile": (config.algo.compile is False, "false", "the run is not compiled", "auto"),
        "model_manager.disabled": (config.model_manager.disabled, "true", "its model is not registered", "false"),
    }
    disabled = {k: v for k, v in off.items() if v[0] and not any(word.lstrip("+").startswith(k) for word in overrides)}
    if disabled:
        settings = ", ".join(f"{key}={value}" for key, (_, value, _, _) in disabled.items())
        effects = " and ".join(effect for _, _, effect, _ in disabled.values())
        on = " ".join(f"{key}={value}" for key, (*_, value) in disabled.items())
        yield f"{settings}: {effects}; to change that, add {on}"


def _steps_of_each_training(config: RunConfig) -> Iterator[str]:
    """Yield a notice if the number of gradient steps after each `algo.train_every` policy steps is not 1.

    Config files of SheepRL from 2023 contain `train_every` and assume one gradient step.
    """
    algo = config.algo
    if not isinstance(algo, ReplayConfig) or (every := algo.train_every) is None:
        return
    if (steps := algo.replay_ratio * every / config.fabric.ranks) == 1:
        return
    yield (
        f"algo.train_every={every}: {steps:g} gradient steps of each rank after every {every} policy steps, because of "
        f"algo.replay_ratio={algo.replay_ratio:g}; for one gradient step, as in SheepRL's files of 2023, set "
        f"algo.replay_ratio={config.fabric.ranks / every:g}"
    )


def _id_that_stays(env_id: str, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a notice if the override `env=` chooses the config file of an environment that the run does not use.

    This happens if the preset sets `env.id`, which has precedence over the file.
    """
    typed = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    if "env" not in typed or "env.id" in typed:
        return
    files = [folder / "env" / f"{typed['env']}.yaml" for folder in config_folders()]
    own = next((yaml.safe_load(file.read_text()).get("id") for file in files if file.exists()), None)
    if own not in (None, "???", env_id) and "${" not in str(own):
        yield f"env={typed['env']}: sets keys, but not the environment {env_id}; to change it, add env.id={own}"


def _id_of_own_class(config: RunConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a notice if the overrides select an environment class of the user but do not set `env.id`.

    The run and the model are named after `env.id`.
    """
    typed = {override.partition("=")[0].lstrip("+") for override in overrides}
    target = config.env.wrapper.get("_target_")  # None for a class of SheepRL's files, such as gymnasium.make
    if OWN_CLASS in typed and target is not None and not typed & {"env", "env.id"}:
        name = str(target).replace(":", ".").rpartition(".")[2]
        yield (
            f"env.id={config.env.id}: the run and its model are named after env.id, not after the class in "
            f"{OWN_CLASS}; to change that, add env.id={name}"
        )
