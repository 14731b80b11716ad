"""One run in memory: built from its directory, trained from boundary to boundary, saved, evaluated, continued."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.envs.vector.make import make_vector_env
from rlcore.errors import RunError
from rlcore.judge.evaluation import evaluate_agent
from rlcore.judge.policy import check_fits, load_policy
from rlcore.optim.when_to_compile import AHEAD_OF_TIME, decide
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, read_events
from rlcore.store.fingerprint import fingerprint
from rlcore.store.run_config import config_of
from rlcore.train.boundary import Boundary
from rlcore.train.collect import Collector
from rlcore.train.fabric import make_fabric, set_switches
from rlcore.train.loop import train
from rlcore.train.metrics import Stopwatch, Window
from rlcore.train.resume import Begun
from rlcore.types import Metrics

Progress = Callable[[dict[str, Any]], None]


class Session:
    """Learner, collector and buffer of one run, and the schedule that the config sets for them.

    Args:
        run: a run directory with config.yaml and env_card.json.

    Raises:
        UserError: the config asks for what is not there, or another config wrote the checkpoints.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.config: RunConfig = config_of(run)
        self.card: dict[str, Any] = run.read_card()
        self.events = EventLog(run.events)
        config = self.config
        set_switches(config)
        self.fabric = make_fabric(config.fabric)
        self.envs = make_vector_env(
            config.env,
            num_envs=config.env.num_envs,
            seed=config.seed,
            tier=self.card["tier"],
            fresh_instance=self.card["fresh_instance"],
        )
        spec = EnvSpec.from_json(self.card["spec"])
        build = ALGORITHMS[config.algo.name].build
        self.learner, self.buffer, self.plan = build(
            config.algo, config.distribution.type, spec, self.fabric, config.seed
        )
        self.rng = streams.generator(config.seed, "minibatch", 0)
        self.collector = Collector(
            self.envs,
            self.learner.agent,
            streams.generator(config.seed, "policy", 0),
            self.fabric.device,
            self.fabric.autocast,
            config.env.clip_rewards,
        )
        begun = Begun.find(run, config.checkpoint.resume_from)
        compiled = decide(config, begun and begun.fingerprint)
        self.fingerprint = fingerprint(config, self.fabric.device, self.card["tier"], self._boundary_keys(), compiled)
        self.window = Window(config.metric)
        self.watch = Stopwatch()
        self.owed: list[str] = []
        self.scores = {
            e["env_steps"]: e["greedy"]["mean"]
            for e in read_events(run.events)
            if e["kind"] == "evaluation" and not e["final"]
        }
        self.interrupted = False
        self.iterations = 0
        self._recent: list[float] = []
        self._start(begun)

    # Continuing -------------------------------------------------------------------------------------------------------

    def _start(self, begun: Begun | None) -> None:
        """Continue from what there is, else from the weights that the config names, else from nothing."""
        if begun is not None:
            begun.check(self.fingerprint, self.config)
        if self.fingerprint["learning"]["compile"] == AHEAD_OF_TIME:
            self.learner.compile(self.plan.collect_length * self.config.env.num_envs)
        if begun is not None:
            with begun.reading():
                self._continue(begun.learning, begun.bookkeeping)
            if begun.own:
                self.events.append("resume", env_steps=self.env_steps)
        elif self.config.init_from:
            self._initialise(self.config.init_from)

    def _continue(self, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(learning["learner"])
        self.buffer.load_state_dict(learning["buffer"])
        self.collector.load_state_dict(learning["collector"])
        streams.load_generator_state(self.rng, learning["rng"])
        self.iterations = learning["iterations"]
        self.window.load_state_dict(bookkeeping["window"])
        self.watch = Stopwatch(bookkeeping["wall_s"], bookkeeping["cpu_s"])
        self._recent = [float(ret) for ret in bookkeeping.get("recent", ())]
        # The log may have lost some to a disk fault, and may reach beyond this checkpoint.
        self.scores = {int(steps): float(score) for steps, score in bookkeeping["scores"].items()} | self.scores
        self.owed = [] if self.env_steps in self.scores else bookkeeping["owed"]

    def _initialise(self, source: str) -> None:
        """Weights and normalisers of another policy; optimizer, counters and environments start anew."""
        policy = load_policy(source)
        check_fits(policy, self.learner.agent, source)
        self.learner.agent.load_state_dict(policy.agent.state_dict())

    def _boundary_keys(self) -> dict[str, Any] | None:
        """What decides where episodes are cut, and which environments share a process, for tier "boundary"."""
        if self.savable:
            return None
        keys = {"checkpoint.every": self.checkpoint_every, "evaluation.every": self.evaluate_every}
        return keys | {"env.sync_env": self.config.env.sync_env}

    # Training ---------------------------------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Actions taken so far."""
        return self.collector.env_steps

    @property
    def checkpoint_every(self) -> int:
        """Env steps between checkpoints."""
        return self.config.checkpoint.every or max(1, math.ceil(self.plan.total_steps / 20))

    @property
    def evaluate_every(self) -> int:
        """Env steps between evaluations."""
        return self.config.evaluation.every or max(1, math.ceil(self.plan.total_steps / 10))

    def advance(self, on_progress: Progress) -> Boundary:
        """Train to the next boundary.

        Args:
            on_progress: called after each iteration with env_steps, the mean return of recent episodes, elapsed
                seconds.

        Returns:
            What is due there. After a resume, first what a killed process still owed.
        """
        if self.owed:
            due, self.owed = tuple(self.owed), []
            return Boundary(self.env_steps, due, self._reason() is not None, self._reason())
        if self._reason() is not None:
            return Boundary(self.env_steps, (), True, self._reason())
        start = self.env_steps
        target = min(
            (start // self.checkpoint_every + 1) * self.checkpoint_every,
            (start // self.evaluate_every + 1) * self.evaluate_every,
            self.plan.total_steps,
        )
        mark = [time.perf_counter()]

        def on_iteration(env_steps: int, metrics: list[Metrics]) -> bool:
            self._account(env_steps, metrics, time.perf_counter() - mark[0], on_progress)
            mark[0] = time.perf_counter()
            return self.interrupted or self.config.dry_run

        with self.watch.running():
            train(self.learner, self.collector, self.buffer, self.plan, self.rng, target, on_iteration)
        return self._boundary(start)

    def _account(self, env_steps: int, metrics: list[Metrics], seconds: float, on_progress: Progress) -> None:
        episodes = self.envs.pop_episodes()
        self.iterations += 1
        self._recent = (self._recent + [e.ret for e in episodes])[-100:]
        collected = self.collector.seconds
        if self.config.metric.log_level:
            self.window.add(metrics, episodes)
        self.window.seconds["collect"] += collected
        self.window.seconds["train"] += seconds - collected
        last = self._reason() is not None
        if self.config.metric.log_level and (self.window.due(env_steps) or last):
            self.events.append(
                "metrics", env_steps=env_steps, values=self.window.close(env_steps, self.learner.updates)
            )
        recent = sum(self._recent) / len(self._recent) if self._recent else None
        on_progress({"env_steps": env_steps, "return": recent, "elapsed": self.watch.wall})

    def _boundary(self, start: int) -> Boundary:
        now, reason = self.env_steps, self._reason()
        evaluate = now // self.evaluate_every > start // self.evaluate_every
        save = evaluate or now // self.checkpoint_every > start // self.checkpoint_every
        if reason is not None:
            save, evaluate = self.config.checkpoint.save_last or evaluate, evaluate and reason != "dry_run"
        due = tuple(name for name, is_due in (("checkpoint", save), ("evaluate", evaluate)) if is_due)
        self.owed = ["evaluate"] if evaluate else []  # also when interrupted here: the resumed process pays first
        return Boundary(now, due, reason is not None, reason)

    def _reason(self) -> str | None:
        """Why training is over, or None: it is not."""
        if self.env_steps >= self.plan.total_steps:
            return "finished"
        if self.config.dry_run and self.iterations:
            return "dry_run"
        return self._early()

    def _early(self) -> str | None:
        rule = self.config.early_stop
        if rule.target_return is None and rule.patience is None:
            return None
        # Those up to here: a log may reach beyond the checkpoint that was resumed.
        scores = [self.scores[steps] for steps in sorted(self.scores) if steps <= self.env_steps]
        if rule.target_return is not None and any(s >= rule.target_return for s in scores):
            return "target_return"
        best, stale = -math.inf, 0
        for score in scores:
            stale = 0 if score > best + rule.min_delta else stale + 1
            best = max(best, score)
        return "plateau" if rule.patience is not None and stale >= rule.patience else None

    # Saving and judging -----------------------------------------------------------------------------------------------

    @property
    def savable(self) -> bool:
        """Whether the state can be saved off schedule: an environment of tier "boundary" is exact on schedule only."""
        return self.card["tier"] != "boundary"

    def save(self) -> dict[str, Any]:
        """Make the present state durable; returns {path, env_steps, digest}; RunError where a weight is not finite."""
        self.collector.arrival = self.envs.boundary()
        learning: dict[str, Any] = {
            "learner": self.learner.state_dict(),
            "buffer": self.buffer.state_dict(),
            "collector": self.collector.state_dict(),
            "rng": streams.generator_state(self.rng),
            "iterations": self.iterations,
        }
        _check_finite(learning["learner"]["agent"], self.env_steps)
        bookkeeping = {
            "fingerprint": self.fingerprint,
            "window": self.window.state_dict(),
            "owed": self.owed,
            "scores": self.scores,
            "recent": self._recent,
            "wall_s": self.watch.wall,
            "cpu_s": self.watch.cpu,
            "updates": self.learner.updates,
            "time": time.time(),
        }
        self.events.sync()
        path = checkpoint.save(self.run.checkpoints, self.env_steps, learning, bookkeeping)
        checkpoint.prune(self.run, self.config.checkpoint.keep_last, path)
        digest = checkpoint.manifest(path)["digest"]
        saved = {"path": str(path.relative_to(self.run.path)), "env_steps": self.env_steps, "digest": digest}
        self.events.append("checkpoint", **saved)
        return saved

    def evaluate(self) -> dict[str, Any]:
        """Judge the present policy greedily while training; the best so far names the best checkpoint."""
        episodes = self.config.evaluation.episodes
        greedy = evaluate_agent(self.learner.agent, self.config, self.card, episodes, fabric=self.fabric)
        earlier = [score for steps, score in self.scores.items() if steps < self.env_steps]
        if (self.run.checkpoints / str(self.env_steps)).exists() and greedy["mean"] >= max(earlier, default=-math.inf):
            checkpoint.name_best(self.run, self.env_steps)
        self.scores[self.env_steps] = greedy["mean"]
        self.owed = []
        return self.events.append("evaluation", env_steps=self.env_steps, final=False, greedy=greedy)

    def close(self) -> None:
        """End the environments' processes."""
        self.envs.close()


def _check_finite(state: Mapping[str, Any], env_steps: int) -> None:
    """Refuse weights that the update after this one would find to be broken.

    Args:
        state: of the agent: tensors by name, those of its normalisers one level below.
        env_steps: for the message.

    Raises:
        RunError: NaN or infinity in one of them.
    """
    for name, value in state.items():
        if isinstance(value, Mapping):
            _check_finite(value, env_steps)
        elif isinstance(value, Tensor) and not value.isfinite().all():
            raise RunError(f"not finite after {env_steps} env steps: {name}; the checkpoints from before are untouched")
