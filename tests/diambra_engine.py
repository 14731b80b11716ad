"""Engine for tests: `interface.EnvServer` over gRPC, with the spaces of DIAMBRA's nine games and a simple game.

It refuses what the real one could not play (an unknown action or character, a step before a reset), and a
client that continues after another one has started a game. `python -m tests.diambra_engine COUNT` serves COUNT
engines, prints their addresses in one line, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from rlcore.envs.suites.diambra.messages import (
    BINARY,
    BOX,
    COMMON,
    DISCRETE,
    METHODS,
    MULTI_DISCRETE,
    P1,
    P2,
    RAM_STATES,
    SERVICE,
    messages,
)

GAMES: dict[str, Any] = json.loads((Path(__file__).parent / "diambra_games.json").read_text())
TYPES = {"BINARY": BINARY, "DISCRETE": DISCRETE, "BOX": BOX}
NUMBERS = {name: number for number, name in RAM_STATES.items()}
HITS = 6  # after which a character loses a round


class Refused(Exception):
    """Request that no engine could serve."""


class Engine:
    """Engine that plays one game at a time."""

    def __init__(self) -> None:
        self.client = ""
        self.settings: Any = None
        self.rng = random.Random()
        self.playing = False
        self.started = 0  # games, by all clients

    # The four methods

    def EnvInit(self, request: Any, client: str) -> Any:  # noqa: N802 - the protocol's names
        if request.game_id not in GAMES:
            raise Refused(f"no game {request.game_id!r}")
        if request.n_players != 1 or list(request.action_spaces) not in ([DISCRETE], [MULTI_DISCRETE]):
            raise Refused("one player with one space of actions is all that is played here")
        if not 1 <= request.step_ratio <= 6:
            raise Refused(f"step_ratio {request.step_ratio}")
        self.client, self.settings, self.game, self.playing = client, request, GAMES[request.game_id], False
        self.started += 1
        shape, asked = list(self.game["frame"]), request.frame_shape
        if asked.h and asked.w:
            shape[:2] = asked.h, asked.w
        if asked.c == 1:
            shape[2] = 1
        self.shape = tuple(shape)
        return self._init_response()

    def Reset(self, request: Any, client: str) -> Any:  # noqa: N802
        self._check_client(client)
        (player,), game = request.player_settings, self.game
        low, high = game["difficulty"]
        if not low <= request.difficulty <= high or player.role not in (P1, P2):
            raise Refused(f"difficulty {request.difficulty}, role {player.role}")
        if len(player.characters) != game["select"] or not set(player.characters) <= set(game["characters"]):
            raise Refused(f"characters {list(player.characters)}")
        self.rng.seed(request.random_seed)
        self.episode, self.role, self.playing = request, player.role, True
        self.foe = P2 if self.role == P1 else P1
        self.character = game["characters"].index(player.characters[0])
        self.stage, self.continues = 1, max(0, int(-request.continue_game))
        self._open_stage()
        return self._response(0, {})

    def Step(self, request: Any, client: str) -> Any:  # noqa: N802
        self._check_client(client)
        if not self.playing:
            raise Refused("no episode is open")
        (action,), game = request.actions, self.game
        if not (0 <= action.move < game["moves"] and 0 <= action.attack < game["attacks"]):
            raise Refused(f"action {action.move}, {action.attack}")
        if DISCRETE in self.settings.action_spaces and action.move and action.attack:
            raise Refused("a move and an attack at once")
        return self._response(*self._play(action))

    def Close(self, request: Any, client: str) -> Any:  # noqa: N802
        self._check_client(client)
        self.client, self.playing = "", False
        return request

    def _check_client(self, client: str) -> None:
        if client != self.client:
            raise Refused("this game is another client's")

    # The game: a hit is a sixth of the health; attacks hit more often than not, the opponent by its difficulty

    def _open_stage(self) -> None:
        self.wins = {P1: 0, P2: 0}
        self.opponent = self.rng.randrange(len(self.game["characters"]))
        self._open_round()

    def _open_round(self) -> None:
        self.hits = {P1: 0, P2: 0}
        self.time = float(self.game["common"]["timer"][2])

    def _play(self, action: Any) -> tuple[int, dict[int, bool]]:
        ratio, before = self.settings.step_ratio, dict(self.hits)
        self.time -= ratio / 60
        if action.attack and self.rng.random() < 0.6:
            self.hits[self.foe] += 1
        if self.rng.random() < 0.02 * ratio * self.episode.difficulty / self.game["difficulty"][1] * (
            2 - (action.move > 0)
        ):
            self.hits[self.role] += 1
        hurt = {player: min(self.hits[player], HITS) - before[player] for player in before}
        reward = (hurt[self.foe] - hurt[self.role]) * self._hit()
        done = {0: max(self.hits.values()) >= HITS or self.time <= 0}
        if done[0]:
            self.wins[self.role if self.hits[self.role] < self.hits[self.foe] else self.foe] += 1
            self._open_round()
            if self.wins[self.role] == self.game["rounds"]:
                done[1], self.stage = True, self.stage + 1
                done[2] = done[3] = self.stage > self.game["stages"]
                self._open_stage()
            elif self.wins[self.foe] == self.game["rounds"]:
                done[2], done[3], self.continues = True, self.continues <= 0, self.continues - 1
                self._open_stage()
        done[4] = done.get(3, False)
        self.playing = not done[4]
        return reward, done

    def _hit(self) -> int:
        health = next(value for name, value in self.game["player"].items() if "health" in name)
        return (health[2] - health[1]) // HITS

    # Messages

    def _init_response(self) -> Any:
        kinds, game = messages(), self.game
        response = kinds.EnvInitResponse(
            available_actions={
                "n_moves": game["moves"],
                "n_attacks": game["attacks"],
                "n_attacks_no_comb": game["attacks_no_comb"],
                "moves": [{"key": f"Move{i}"} for i in range(game["moves"])],
                "attacks": [{"key": f"But{i}"} for i in range(game["attacks"])],
            },
            frame_shape=dict(zip("hwc", self.shape, strict=True)),
            characters_info={
                "char_list": game["characters"],
                "char_forbidden_list": game["forbidden"],
                "char_homonymy_map": game["homonyms"],
                "chars_per_round": game["per_round"],
                "chars_to_select": game["select"],
            },
            difficulty_bounds=dict(zip(("min", "max"), game["difficulty"], strict=True)),
        )
        for category, states in self._states():
            for name, (kind, low, high) in states.items():
                state = response.ram_states_categories[category].ram_states[NUMBERS[name]]
                state.type, state.min, state.max = TYPES[kind], low, high
        return response

    def _states(self) -> list[tuple[int, dict[str, Any]]]:
        return [(COMMON, self.game["common"]), (P1, self.game["player"]), (P2, self.game["player"])]

    def _response(self, reward: int, done: dict[int, bool]) -> Any:
        response = messages().StepResetResponse(reward=reward)
        for category, states in self._states():
            for name, (_, low, high) in states.items():
                value = self._value(category, name, low, high)
                response.observation.ram_states_categories[category].ram_states[NUMBERS[name]] = value
        for state in range(5):
            response.info.game_states[state] = done.get(state, False)
        response.observation.frame = self._frame().tobytes()
        return response

    def _value(self, category: int, name: str, low: int, high: int) -> int:
        if name == "stage":
            return min(self.stage, high)
        if name == "timer":
            return max(low, int(self.time))
        if name == "side":
            return category - P1
        if name == "wins":
            return self.wins[category]
        if name.startswith("character"):
            return self.character if category == self.role else self.opponent
        if name.startswith("health"):
            return high - self.hits[category] * self._hit()
        return self.rng.randint(low, high)

    def _frame(self) -> np.ndarray:
        """Return the frame: hits of each side in the upper half, the time in the lower half; channels differ by one."""
        frame = np.empty(self.shape, np.uint8)
        half = self.shape[0] // 2, self.shape[1] // 2
        frame[: half[0], : half[1]] = 20 * self.hits[P1]
        frame[: half[0], half[1] :] = 20 * self.hits[P2]
        frame[half[0] :] = int(self.time * 2) % 250
        return frame + np.arange(self.shape[2], dtype=np.uint8)


def serve(engine: Engine) -> tuple[Any, str]:
    """Return a running server of one engine and its address."""

    def handler(name: str) -> Any:
        takes, gives = (getattr(messages(), kind) for kind in METHODS[name])

        def answer(request: Any, context: Any) -> Any:
            try:
                return getattr(engine, name)(request, context.peer())
            except Refused as refused:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))

        return grpc.unary_unary_rpc_method_handler(answer, takes.FromString, gives.SerializeToString)

    server = grpc.server(ThreadPoolExecutor(1))
    methods = {name: handler(name) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


@contextlib.contextmanager
def engines(count: int) -> Iterator[list[str]]:
    """Yield the addresses of `count` engines in one separate process."""
    command = [sys.executable, "-m", "tests.diambra_engine", str(count)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            addresses = process.stdout.readline().split()
            assert len(addresses) == count, "the engines did not start"
            yield addresses
        finally:
            process.stdin.close()


if __name__ == "__main__":
    servers = [serve(Engine()) for _ in range(int(sys.argv[1]))]
    print(*(address for _, address in servers), flush=True)
    sys.stdin.read()
