"""DIAMBRA engines: their addresses, exclusive claims, and connections. An engine is a server that plays one game."""

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
PATIENCE = 5.0  # seconds to wait for another process to release an engine, and for an engine to close a game
START = 20.0  # seconds to wait for an engine's port, because `diambra run` waits only for the first engine
HOW = "diambra run -s={} shepherd train …"


class EngineError(RuntimeError):
    """Error for an engine that does not answer, or that answers with an error."""


def addresses() -> list[str]:
    """Return `host:port` of every engine in DIAMBRA_ENVS, which `diambra run` sets, or the default address."""
    return os.environ.get(VARIABLE, "").split() or [DEFAULT]


def are_named() -> bool:
    """Return True if DIAMBRA_ENVS is set, by the user or by `diambra run`."""
    return bool(os.environ.get(VARIABLE, "").split())


def take(address: str) -> socket.socket | None:
    """Claim an engine for this process; return the claim, or None if the engine is already claimed.

    The claim is a socket. It ends when the socket is closed or when this process ends. It is needed, because an engine
    drops its client if a second client connects. The socket is an abstract Unix socket with a name that is derived from
    the address. The kernel allows only one socket with this name in a network namespace, and removes the name if the
    process is killed.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0shepherd-diambra-{address}")
    except OSError:
        claim.close()
        return None
    return claim


def take_any(patience: float = PATIENCE) -> tuple[str, socket.socket] | None:
    """Claim the first free engine; return (address, claim), or None if none becomes free in `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        for address in addresses():
            if (claim := take(address)) is not None:
                return address, claim
        if time.monotonic() >= until:
            return None
        time.sleep(0.05)


def count_free() -> int:
    """Return the number of free engines."""
    free = 0
    for address in set(addresses()):
        if (claim := take(address)) is not None:
            claim.close()
            free += 1
    return free


def is_there(address: str, until: float) -> bool:
    """Return True if a server listens at an address; retry until the time `until` of the monotonic clock."""
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
    """Raise UserError if a needed engine does not answer.

    Args:
        needed: addresses at which servers must listen.
        suggested: number of engines that the error message tells the user to start.
        patience: seconds to wait for the servers if DIAMBRA_ENVS is set.

    Raises:
        UserError: No server listens at one of the addresses.
    """
    until = time.monotonic() + (patience if are_named() else 0)
    if silent := [address for address in needed if not is_there(address, until)]:
        where = f"at {' '.join(silent)} of {VARIABLE}" if are_named() else f"at {DEFAULT}, and {VARIABLE} is not set"
        raise UserError(
            f"no engine answers {where}; this line starts engines and then the command: {HOW.format(suggested)}"
        )


def refuse_few(training: int) -> None:
    """Raise UserError if there are too few engines for `training` environments and one evaluation environment."""
    needed, given = training + 1, len(set(addresses()))
    if given < needed:
        has = f"{VARIABLE} names {given}" if are_named() else f"{VARIABLE} is not set"
        raise UserError(
            f"env.num_envs, summed over fabric.devices, is {training}: {needed} engines are needed, one for each "
            f"environment and one for evaluation, but {has}; start engines and the command with: {HOW.format(needed)}"
        )


class Engine:
    """Connection to an engine that this process has claimed.

    Args:
        address: `host:port` of the engine.
        claim: socket that `take` returned; `close` closes it, so that other processes can use the engine.
        patience: seconds to wait for the start of the game.
    """

    def __init__(self, address: str, claim: socket.socket, patience: float) -> None:
        self.grpc: Any = importlib.import_module("grpc")
        self.address, self.patience, self._claim = address, patience, claim
        # By default, gRPC shares connections to one address and keeps them open after `close`; a local pool does not.
        self._channel = self.grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._calls = {name: self._call(name) for name in METHODS}

    def _call(self, name: str) -> Any:
        takes, gives = (getattr(messages(), kind) for kind in METHODS[name])
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}", request_serializer=takes.SerializeToString, response_deserializer=gives.FromString
        )

    def start(self, settings: Any) -> Any:
        """Start a game with an `EnvSettings` message; return the `EnvInitResponse`."""
        return self._ask("EnvInit", settings, wait_for_ready=True, timeout=self.patience)

    def reset(self, episode: Any) -> Any:
        """Start an episode with an `EpisodeSettings` message; return a `StepResetResponse`."""
        return self._ask("Reset", episode)

    def step(self, move: int, attack: int) -> Any:
        """Send an action, which consists of a move and an attack; return a `StepResetResponse`."""
        kinds = messages()
        return self._ask("Step", kinds.Actions(actions=[kinds.Action(move=move, attack=attack)]))

    def _ask(self, method: str, request: Any, **how: Any) -> Any:
        try:
            return self._calls[method](request, **how)
        except self.grpc.RpcError as error:
            text = " ".join(str(error.details()).split()) or "no reason given"
            raise EngineError(f"the engine at {self.address}, {method}: {error.code().name}, {text}") from None

    def close(self) -> None:
        """End the game and release the engine."""
        with contextlib.suppress(self.grpc.RpcError):  # the game or the engine has already ended
            self._calls["Close"](messages().Empty(), timeout=PATIENCE)
        self._channel.close()
        self._claim.close()
