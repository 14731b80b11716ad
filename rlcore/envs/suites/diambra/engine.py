"""Engines: one server each, which plays one game at a time; where they are, and a connection to one of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from typing import Any

from rlcore.envs.suites.diambra.messages import METHODS, SERVICE, messages
from rlcore.errors import UserError

VARIABLE = "DIAMBRA_ENVS"
DEFAULT = "localhost:50051"
PATIENCE = 5.0  # seconds in which somebody who has just ended lets go of an engine, and in which one closes a game
START = 20.0  # seconds in which an engine's container opens its port: `diambra run` waits for the first one alone
HOW = "diambra run -s={} shepherd train …"


class EngineError(RuntimeError):
    """An engine that does not answer, or answers with an error."""


def addresses() -> list[str]:
    """`host:port` of every engine: those in DIAMBRA_ENVS, which `diambra run` sets; without it the default one."""
    return os.environ.get(VARIABLE, "").split() or [DEFAULT]


def are_named() -> bool:
    """Tell whether the user, or `diambra run`, has said where engines are."""
    return bool(os.environ.get(VARIABLE, "").split())


def take(address: str) -> socket.socket | None:
    """A claim to an engine, good until it is closed or this process ends; None where another one has it.

    An engine plays one game: a second client would take it from the first. The claim is a name that the kernel gives
    once in a network namespace, as ports are, and takes back by itself from whoever was killed.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0shepherd-diambra-{address}")
    except OSError:
        claim.close()
        return None
    return claim


def take_any(patience: float = PATIENCE) -> tuple[str, socket.socket] | None:
    """The first engine that nobody has, and the claim to it; None where all are still taken after some seconds."""
    until = time.monotonic() + patience
    while True:
        for address in addresses():
            if (claim := take(address)) is not None:
                return address, claim
        if time.monotonic() >= until:
            return None
        time.sleep(0.05)


def count_free() -> int:
    """Number of engines that nobody has."""
    free = 0
    for address in set(addresses()):
        if (claim := take(address)) is not None:
            claim.close()
            free += 1
    return free


def is_there(address: str, until: float) -> bool:
    """Tell whether something listens at an address, at once or before a time of the monotonic clock."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=max(until - time.monotonic(), 0.5)).close()
        except ValueError:
            return False
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)
        else:
            return True


def refuse_absent(needed: list[str], suggested: int, patience: float = START) -> None:
    """Refuse, in a UserError, engines of which one does not listen; `suggested` is how many to start instead."""
    until = time.monotonic() + (patience if are_named() else 0)
    if silent := [address for address in needed if not is_there(address, until)]:
        where = f"at {' '.join(silent)} of {VARIABLE}" if are_named() else f"at {DEFAULT}, and {VARIABLE} is not set"
        raise UserError(f"no engine answers {where}: start the command with engines, {HOW.format(suggested)}")


def refuse_few(training: int) -> None:
    """Refuse, in a UserError, engines that are too few to train so many environments and evaluate one."""
    needed, given = training + 1, len(set(addresses()))
    if given < needed:
        has = f"{VARIABLE} names {given}" if are_named() else f"{VARIABLE} is not set"
        raise UserError(
            f"env.num_envs (of all fabric.devices) is {training}: {needed} engines are needed, one for each and one to "
            f"evaluate on, and {has}: start the command with engines, {HOW.format(needed)}"
        )


class Engine:
    """A connection to an engine that is claimed by this one.

    Args:
        address: `host:port`.
        claim: from `take`; closed with the connection.
        patience: seconds in which the engine must have started its game.
    """

    def __init__(self, address: str, claim: socket.socket, patience: float) -> None:
        self.grpc: Any = importlib.import_module("grpc")
        self.address, self.patience, self._claim = address, patience, claim
        # A connection that is closed with it: else one is kept for all of this process's engines of an address.
        self._channel = self.grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._calls = {name: self._call(name) for name in METHODS}

    def _call(self, name: str) -> Any:
        takes, gives = (getattr(messages(), kind) for kind in METHODS[name])
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}", request_serializer=takes.SerializeToString, response_deserializer=gives.FromString
        )

    def start(self, settings: Any) -> Any:
        """Start a game by an `EnvSettings`; gives the `EnvInitResponse`."""
        return self._ask("EnvInit", settings, wait_for_ready=True, timeout=self.patience)

    def reset(self, episode: Any) -> Any:
        """Open an episode by its `EpisodeSettings`; gives a `StepResetResponse`."""
        return self._ask("Reset", episode)

    def step(self, move: int, attack: int) -> Any:
        """Take an action; gives a `StepResetResponse`."""
        kinds = messages()
        return self._ask("Step", kinds.Actions(actions=[kinds.Action(move=move, attack=attack)]))

    def _ask(self, method: str, request: Any, **how: Any) -> Any:
        try:
            return self._calls[method](request, **how)
        except self.grpc.RpcError as error:
            text = " ".join(str(error.details()).split()) or "no reason given"
            raise EngineError(f"the engine at {self.address}, {method}: {error.code().name}, {text}") from None

    def close(self) -> None:
        """End the game and let go of the engine, which another one may use then."""
        with contextlib.suppress(self.grpc.RpcError):  # it has ended by itself
            self._calls["Close"](messages().Empty(), timeout=PATIENCE)
        self._channel.close()
        self._claim.close()
