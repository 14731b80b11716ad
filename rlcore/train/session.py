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
from rlcore.judge.play import OnProgress
from rlcore.judge.policy import check_fits, load_policy
from rlcore.optim.when_to_compile import AHEAD_OF_TIME, decide
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, read_events
from rlcore.store.fingerprint import fingerprint
from rlcore.store.patience import patiently
from rlcore.store.run_config import config_of
from rlcore.train.boundary import Boundary, boundary_at, budget, next_stop, why_over
from rlcore.train.collect import Collector
from rlcore.train.fabric import FabricRanks, make_fabric, set_switches
from rlcore.train.loop import train
from rlcore.train.metrics import MetricsWindow, Stopwatch
from rlcore.train.resume import ResumePoint
from rlcore.types import Context, Metrics

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
        self.ranks = FabricRanks(self.fabric)
        self.width = config.env.num_envs * self.ranks.size
        earlier = ResumePoint.find(run, config.checkpoint.resume_from)
        compiled = decide(config, earlier and earlier.fingerprint)
        self.fingerprint = fingerprint(config, self.fabric.device, self.card["tier"], compiled)
        if earlier is not None:
            earlier.check(self.fingerprint, config)
        context = Context(config, spec, self.fabric, self.ranks, config.env.num_envs, compiled == AHEAD_OF_TIME)
        self.learner, self.buffer, self.plan = build(context)
        self.rng = streams.generator(config.seed, "minibatch", self.ranks.rank)
        self.collector = Collector(
            self.envs,
            self.learner.agent,
            streams.generator(config.seed, "policy", self.ranks.rank),
            self.fabric.device,
            self.fabric.autocast,
            config.env.clip_rewards,
            self.ranks,
        )
        self.window = MetricsWindow(config.metric)
        self.stopwatch = Stopwatch()
        self.owed: list[str] = []
        self.scores = {
            e["env_steps"]: e["greedy"]["mean"]
            for e in read_events(run.events)
            if e["kind"] == "evaluation" and not e["final"]
        }
        self.interrupted = False
        self.iterations = 0
        self._recent: list[float] = []
        self._start(earlier)

    # Continuing -------------------------------------------------------------------------------------------------------

    def _start(self, earlier: ResumePoint | None) -> None:
        """Continue from what there is, else from the weights that the config names, else from nothing."""
        if earlier is not None:
            with earlier.reading():
                self._continue(earlier.learning, earlier.bookkeeping)
            if earlier.own:
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
        self.stopwatch = Stopwatch(bookkeeping["wall_s"], bookkeeping["cpu_s"])
        self._recent = [float(ret) for ret in bookkeeping.get("recent", ())]
        # The log may have lost some to a disk fault, and may reach beyond this checkpoint.
        self.scores = {int(steps): float(score) for steps, score in bookkeeping["scores"].items()} | self.scores
        self.owed = [] if self.env_steps in self.scores else bookkeeping["owed"]

    def _initialise(self, source: str) -> None:
        """Weights and normalisers of another policy; optimizer, counters and environments start anew."""
        policy = load_policy(source)
        check_fits(policy, self.learner.agent, source)
        self.learner.agent.load_state_dict(policy.agent.state_dict())

    # Training ---------------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Policy steps of the whole run."""
        return budget(self.config, self.width)

    @property
    def env_steps(self) -> int:
        """Actions taken so far."""
        return self.collector.env_steps

    def advance(self, on_progress: Progress) -> Boundary:
        """Train to the next boundary.

        Args:
            on_progress: called after each iteration with env_steps, policy_steps, the mean return of recent episodes,
                elapsed seconds.

        Returns:
            What is due there. After a resume, first what a killed process still owed.
        """
        reason = self._reason()
        if self.owed or reason is not None:
            due, self.owed = tuple(self.owed), []
            return Boundary(self.env_steps, due, reason is not None, reason)
        start, mark = self.collector.policy_steps, time.perf_counter()

        def on_iteration(metrics: list[Metrics]) -> bool:
            nonlocal mark
            self._account(metrics, time.perf_counter() - mark, on_progress)
            mark = time.perf_counter()
            return self.interrupted or self.config.dry_run

        until = next_stop(self.config, start, self.width)
        with self.stopwatch.running():
            train(self.learner, self.collector, self.buffer, self.plan, self.rng, until, on_iteration)
        now = self.collector.policy_steps
        boundary = boundary_at(self.config, start, now, self.env_steps, self._reason())
        # Also when interrupted here: the resumed process pays first.
        self.owed = ["evaluate"] if "evaluate" in boundary.due else []
        return boundary

    def _account(self, metrics: list[Metrics], seconds: float, on_progress: Progress) -> None:
        episodes, env_steps = self.envs.pop_episodes(), self.env_steps
        self.iterations += 1
        self._recent = (self._recent + [e.ret for e in episodes])[-100:]
        collected = self.collector.seconds
        self.window.add(metrics, episodes)
        self.window.seconds["collect"] += collected
        self.window.seconds["train"] += seconds - collected
        last = self._reason() is not None
        if self.window.due(env_steps) or last:
            point = self.window.close(env_steps, self.learner.updates)
            if self.config.metric.log_level:
                patiently(lambda: self.events.append("metrics", env_steps=env_steps, values=point))
        recent = sum(self._recent) / len(self._recent) if self._recent else None
        spent, elapsed = self.collector.policy_steps, self.stopwatch.wall
        place = {"env_steps": env_steps, "policy_steps": spent, "total_steps": self.budget}
        on_progress({**place, "return": recent, "elapsed": elapsed})

    def _reason(self) -> str | None:
        return why_over(self.config, self.width, self.iterations, self.env_steps, self.scores)

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
            "wall_s": self.stopwatch.wall,
            "cpu_s": self.stopwatch.cpu,
            "updates": self.learner.updates,
            "time": time.time(),
        }
        patiently(self.events.sync)
        path = patiently(lambda: checkpoint.save(self.run.checkpoints, self.env_steps, learning, bookkeeping))
        checkpoint.prune(self.run, self.config.checkpoint.keep_last, path)
        digest = checkpoint.manifest(path)["digest"]
        saved = {"path": str(path.relative_to(self.run.path)), "env_steps": self.env_steps, "digest": digest}
        patiently(lambda: self.events.append("checkpoint", **saved))
        return saved

    def evaluate(self, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Judge the present policy greedily while training; the best so far names the best checkpoint."""
        greedy = evaluate_agent(
            self.learner.agent,
            self.config,
            self.card,
            self.config.evaluation.episodes,
            fabric=self.fabric,
            on_progress=on_progress,
        )
        earlier = [score for steps, score in self.scores.items() if steps < self.env_steps]
        if (self.run.checkpoints / str(self.env_steps)).exists() and greedy["mean"] >= max(earlier, default=-math.inf):
            patiently(lambda: checkpoint.name_best(self.run, self.env_steps))
        self.scores[self.env_steps] = greedy["mean"]
        self.owed = []
        fields: dict[str, Any] = {"env_steps": self.env_steps, "final": False, "greedy": greedy}
        return patiently(lambda: self.events.append("evaluation", **fields))

    def close(self) -> None:
        """End the environments' processes."""
        self.envs.close()


def _check_finite(state: Mapping[str, Any], env_steps: int) -> None:
    """Refuse weights with NaN or infinity, which the update after this one would find to be broken."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            _check_finite(value, env_steps)
        elif isinstance(value, Tensor) and not value.isfinite().all():
            raise RunError(f"not finite after {env_steps} env steps: {name}; the checkpoints from before are untouched")
