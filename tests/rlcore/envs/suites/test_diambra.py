"""DIAMBRA games: wrappers, settings of episodes, claims of engines, refusals, and resume."""

from __future__ import annotations

import dataclasses
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from rlcore.config.groups import EnvConfig
from rlcore.envs.card import environment_card, readable_card
from rlcore.envs.make import EnvSettings, make, suite_for
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.diambra import engine as engines_of
from rlcore.envs.suites.diambra.messages import P1, P2, messages
from rlcore.envs.suites.diambra.settings import draw_characters, episode_settings, read_keys
from rlcore.envs.suites.registry import SUITES, list_suite
from rlcore.envs.suites.suite import open_env
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import EnvironmentFault, UserError
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.run_config import build_config
from rlcore.spec import EnvSpec
from tests.diambra_engine import Engine, engines, serve
from tests.runs import CARD, values

SUITE = SUITES["diambra"]
QUICK = {"action_space": "MULTI_DISCRETE", "screen_size": 16}


@pytest.fixture(scope="module")
def served() -> Iterator[list[str]]:
    with engines(3) as addresses:
        yield addresses


@pytest.fixture
def three_engines(served: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("DIAMBRA_ENVS", " ".join(served))
    return served


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIAMBRA_ENVS", raising=False)
    monkeypatch.setattr(engines_of, "DEFAULT", "127.0.0.1:9")  # port 9 (discard), where no server listens


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_of, "PATIENCE", 0.1)
    monkeypatch.setattr(engines_of.take_any, "__defaults__", (0.1,))
    monkeypatch.setattr(engines_of.refuse_absent, "__defaults__", (0.1,))


class Scripted(Engine):
    """Engine that records its requests, and ends rounds and games after a fixed number of steps."""

    def __init__(self, rounds: int = 10**9, games: int = 10**9) -> None:
        super().__init__()
        self.rounds, self.games, self.steps, self.asked = rounds, games, 0, []

    def Reset(self, request: Any, client: str) -> Any:  # noqa: N802
        self.asked.append(request)
        return super().Reset(request, client)

    def _play(self, action: Any) -> tuple[int, dict[int, bool]]:
        self.steps += 1
        self.asked.append((action.move, action.attack))
        over = self.steps % self.games == 0
        return self.steps, {0: self.steps % self.rounds == 0, 3: over, 4: over}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create a game on a scripted engine in this process."""
    with ExitStack() as stack:

        def begin(engine: Scripted, game: str = "doapp", **wrapper: Any) -> Any:
            server, address = serve(engine)
            stack.callback(lambda: server.stop(None).wait())
            monkeypatch.setenv("DIAMBRA_ENVS", address)
            return stack.enter_context(closing(open_env(SUITE, game, QUICK | wrapper)))

        yield begin


# --- actions, observations and rewards --------------------------------------------------------------------------------


def test_repeat_action_stops_at_round_end(scripted, caplog):
    engine = Scripted(rounds=5)
    env = scripted(engine, repeat_action=3, diambra_settings={"step_ratio": 6})
    assert engine.settings.step_ratio == 1 and "step_ratio is 1 instead of 6" in caplog.text
    env.reset(seed=0)
    _, reward, *_ = env.step(np.array([2, 1]))
    assert reward == 1 + 2 + 3 and engine.asked[1:] == [(2, 1)] * 3
    _, reward, _, _, info = env.step(np.array([2, 1]))
    assert reward == 4 + 5 and info["round_done"]  # the sixth step would belong to the next round


@pytest.mark.parametrize("own", [{}, {"repeat_action": 3}], ids=["by the key of all", "by its own"])
def test_action_repeat_is_applied_only_once(three_engines, own):
    with closing(make(EnvSettings("doapp", wrapper=QUICK | own, action_repeat=3))) as env:
        assert "ActionRepeat" not in str(env)
        assert env.unwrapped.keys.repeat_action == 3 and env.unwrapped.keys.step_ratio == 1


def test_target_wrapper_applies_to_diambra_game(three_engines, tmp_path, monkeypatch):
    (tmp_path / "own_fights.py").write_text(
        "import gymnasium\n\n\nclass Halved(gymnasium.RewardWrapper):\n"
        "    def __init__(self, env, share):\n        super().__init__(env)\n        self.share = share\n\n"
        "    def reward(self, reward):\n        return self.share * reward\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SHEPHERD_PLUGINS", "own_fights")
    game = QUICK | {"diambra_settings": {"difficulty": 2}}
    plain = EnvSettings("doapp", wrapper=game, action_repeat=3)
    halved = dataclasses.replace(plain, wrapper=game | {"_target_": "own_fights.Halved", "share": 0.5})
    suite, _ = suite_for(halved)
    assert (suite.tier, suite.tier_reason, suite.free_instances("doapp")) == (SUITE.tier, SUITE.tier_reason, 3)
    with closing(make(halved)) as env:
        assert "ActionRepeat" not in str(env) and suite.free_instances("doapp") == 2
        env.reset(seed=0)
        rewards = [env.step(np.array([1, 1]))[1] for _ in range(30)]
        assert env.unwrapped.keys.diambra_settings.difficulty == 2
    with closing(make(plain)) as env:
        env.reset(seed=0)
        assert rewards == [0.5 * env.step(np.array([1, 1]))[1] for _ in range(30)] != [0.0] * 30


def test_no_op_max_limits_random_no_op_count(scripted):
    engine = Scripted()
    env = scripted(engine, diambra_wrappers={"no_op_max": 3})
    counts = set()
    for seed in range(20):
        before = engine.steps
        env.reset(seed=seed)
        counts.add(engine.steps - before)
    assert counts == {1, 2, 3} and set(engine.asked[1:2]) == {(0, 0)}


def test_game_that_ends_during_no_ops_restarts(scripted):
    engine = Scripted(games=1)
    env = scripted(engine, diambra_wrappers={"no_op_max": 1})
    env.reset(seed=0)
    assert [type(asked).__name__ for asked in engine.asked] == ["EpisodeSettings", "tuple", "EpisodeSettings"]


def test_scale_normalizes_numbers_and_encodes_choices(scripted):
    wrappers = {"scale": True, "add_last_action": True, "role_relative": True}
    env = scripted(Scripted(), "sfiii3n", diambra_wrappers=wrappers, diambra_settings={"characters": "Hugo"})
    env.reset(seed=0)
    obs, *_ = env.step(np.array([8, 1]))
    assert env.observation_space.contains(obs)
    assert obs["own_character"].tolist() == [0, 0, 1, *[0] * 17]  # Hugo is the third of 20
    assert obs["own_health"] == 1.0  # 160 of -1 to 160
    assert obs["stage"] == 0.0 and obs["opp_side"].tolist() == [1]  # of two sides: stays a number
    assert obs["action"].tolist() == [*[0] * 8, 1, 0, 1, *[0] * 8]  # move 9 of 9, attack 2 of 10
    # Without a hit, which would be 20 in the frame, the upper half is the number of the channel.
    assert obs["frame"].dtype == np.float32 and obs["frame"][0, 0].tolist() == pytest.approx([0, 1 / 255, 2 / 255])


def test_exclude_image_scaling_keeps_frames(scripted):
    wrappers = {"scale": True, "exclude_image_scaling": True, "process_discrete_binary": True}
    obs, _ = scripted(Scripted(), diambra_wrappers=wrappers).reset(seed=0)
    assert obs["frame"].dtype == np.uint8 and obs["P2_side"].tolist() == [0, 1]


def test_stack_actions_resets_at_round_end(scripted):
    wrappers = {"add_last_action": True, "stack_actions": 2}
    env = scripted(Scripted(rounds=3), action_space="DISCRETE", diambra_wrappers=wrappers)
    stacks = [env.reset(seed=0)[0]["action"].tolist()] + [env.step(4 + i)[0]["action"].tolist() for i in range(4)]
    assert stacks == [[0, 0], [0, 4], [4, 5], [0, 0], [0, 7]]


@pytest.mark.parametrize(("fast", "asked"), [(True, (32, 32, 1)), (False, (0, 0, 0))])
def test_increase_performance_resizes_frames_in_engine(three_engines, fast, asked):
    wrapper = {"screen_size": 32, "grayscale": True, "increase_performance": fast}
    assert read_keys(wrapper).frame_shape == asked
    with closing(make(EnvSettings("doapp", wrapper=wrapper, screen_size=32, grayscale=True))) as env:
        obs, _ = env.reset(seed=0)
        assert obs["frame"].shape == (32, 32, 1) and obs["frame"].flags.writeable
        assert spec_of(env).obs["frame"].kind == "image" and spec_of(env).obs["P1_health"].kind == "vector"


def test_render_returns_three_channels(three_engines):
    with closing(open_env(SUITE, "doapp", QUICK | {"grayscale": True}, "rgb_array")) as env:
        env.reset(seed=0)
        assert env.render().shape == (16, 16, 3)
        assert env.metadata["render_fps"] == 10  # 60 frames per second, six per action


# --- random settings --------------------------------------------------------------------------------------------------


def info_of(game: str) -> Any:
    engine = Engine()
    settings = {"game_id": game, "step_ratio": 6, "n_players": 1, "action_spaces": [1]}
    return engine.EnvInit(messages().EnvSettings(**settings), "me")


def test_episode_settings_draws_null_settings_from_all_values():
    keys = read_keys({"diambra_settings": {"tower": None}})
    info, rng = info_of("kof98umh"), np.random.default_rng(0)
    episodes = [episode_settings(keys, "kof98umh", info, rng) for _ in range(400)]
    players = [episode.player_settings[0] for episode in episodes]
    assert {player.role for player in players} == {P1, P2}
    assert {episode.difficulty for episode in episodes} == set(range(1, 9))
    assert {episode.tower for episode in episodes} == {1, 2, 3, 4}
    assert {player.fighting_style for player in players} == {1, 2, 3}
    assert {
        style for p in players for style in (p.ultimate_style.dash, p.ultimate_style.evade, p.ultimate_style.bar)
    } == {1, 2}
    drawn_characters = {name for player in players for name in player.characters}
    assert drawn_characters == {*info.characters_info.char_list} - {"Goenitz", "Orochi"}
    assert len({episode.random_seed for episode in episodes}) == 400


def test_episode_settings_keeps_given_values():
    free, info = read_keys({}), info_of("doapp")
    fixed = read_keys({"diambra_settings": {"role": "P2", "difficulty": 1, "super_art": 2}})
    one, other = (episode_settings(keys, "doapp", info, np.random.default_rng(5)) for keys in (free, fixed))
    player = other.player_settings[0]
    assert (player.role, other.difficulty, player.super_art) == (P2, 1, 2)
    assert one.random_seed == other.random_seed and list(one.player_settings[0].characters) == list(player.characters)


def test_draw_characters_never_draws_same_person_twice():
    characters, rng = info_of("tektagt").characters_info, np.random.default_rng(1)
    settings = read_keys({"diambra_settings": {"characters": ["Tiger"]}}).diambra_settings
    seconds = {draw_characters(settings, characters, rng)[1] for _ in range(600)}
    assert not {"Tiger", "Eddy", "Unknown"} & seconds and len(seconds) == len(characters.char_list) - 3


def test_read_keys_accepts_names_of_tutorial():
    keys = read_keys(
        {
            "action_space": "diambra.arena.SpaceTypes.MULTI_DISCRETE",
            "diambra_settings": {"role": "diambra.arena.Roles.P2"},
        }
    )
    assert keys.action_space == "MULTI_DISCRETE" and keys.diambra_settings.role == "P2"


# --- engines ----------------------------------------------------------------------------------------------------------


def test_open_env_claims_one_engine_until_close(three_engines, short_timeouts):
    envs = [open_env(SUITE, "doapp", QUICK) for _ in range(3)]
    try:
        assert sorted(env.unwrapped.engine.address for env in envs) == sorted(three_engines)
        assert SUITE.free_instances("doapp") == 0
        with pytest.raises(UserError, match=r"env.id=doapp: .* all are in use .*diambra run -s=4"):
            open_env(SUITE, "doapp", QUICK)
        envs[1].close()
        assert SUITE.free_instances("doapp") == 1
        with closing(open_env(SUITE, "doapp", QUICK)) as env:
            assert env.unwrapped.engine.address == three_engines[1]
    finally:
        for env in envs:
            env.close()
    assert SUITE.free_instances("doapp") == 3


def test_open_env_releases_engine_after_refusal(three_engines):
    with pytest.raises(UserError) as refused:
        open_env(SUITE, "doapp", QUICK | {"diambra_settings": {"difficulty": 9, "outfits": 5, "characters": "Kasum"}})
    assert re.findall(r"(\w+)=", str(refused.value)) == ["difficulty", "outfits", "characters"]
    assert "did you mean 'Kasumi'" in str(refused.value)
    assert SUITE.free_instances("doapp") == 3


def test_grpc_timeout_refuses_game_that_never_starts(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as mute:  # listens like the port of a container, but never answers
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        monkeypatch.setenv("DIAMBRA_ENVS", address)
        with pytest.raises(UserError, match=f"env.id=umk3: .*{address}, EnvInit: DEADLINE_EXCEEDED.*DIAMBRAROMSPATH"):
            open_env(SUITE, "umk3", QUICK | {"diambra_settings": {"grpc_timeout": 1}})
    assert SUITE.free_instances("umk3") == 1


def test_keys_without_effect_warn_once(three_engines, caplog):
    wrapper = QUICK | {"diambra_settings": {"frame_shape": [31, 31, 0]}, "rank": 3}
    for _ in range(2):
        with closing(open_env(SUITE, "doapp", wrapper)) as env:
            assert env.observation_space["frame"].shape == (16, 16, 3)
    (warning,) = [line for line in caplog.messages if "has no effect" in line]
    assert warning.startswith("env.wrapper.diambra_settings.frame_shape=[31, 31, 0] has no effect: env.screen_size")


def test_step_names_engine_that_ended(monkeypatch):
    server, address = serve(Engine())
    monkeypatch.setenv("DIAMBRA_ENVS", address)
    envs = make_vector_env(EnvSettings("doapp", wrapper=QUICK), num_envs=1, seed=0, tier="boundary")
    with closing(envs):
        envs.reset()
        server.stop(None).wait()
        with pytest.raises(
            EnvironmentFault, match=f"environment 0, step 1 .*the engine at {address}, Step: UNAVAILABLE"
        ):
            envs.step(np.array([[0, 0]]))


def test_evaluate_agent_uses_only_free_engines(three_engines):
    keys = {"env__wrapper": QUICK, "env__max_episode_steps": 5, "algo__mlp_keys__encoder": ["timer"]}
    config = build_config(values("doapp", 64, **keys))
    with closing(open_env(SUITE, "doapp", QUICK)), closing(make(config.env)) as env:
        spec = spec_of(env)
        instances = SUITE.free_instances("doapp")
        result = evaluate_agent(RandomAgent(spec), config, CARD | {"tier": "boundary"}, 4, greedy=False)
    assert instances == 1 and result["episodes"] == 4


# --- refusals ---------------------------------------------------------------------------------------------------------


WRONG = {"step_ratio": 7, "rolle": "P1"}


def test_check_reports_all_problems_in_order(no_engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UserError) as refused:
        SUITE.check("doapp", {"diambra_settings": WRONG, "id": "doapp"}, 4)
    lines = str(refused.value).splitlines()
    assert "pip install -e '.[diambra]'" in lines[0]
    assert "5 engines are needed" in lines[1] and "DIAMBRA_ENVS is not set" in lines[1]
    assert lines[1].endswith("diambra run -s=5 shepherd train …")
    assert "unknown key 'env.wrapper.diambra_settings.rolle'" in lines[2] and "did you mean" in lines[2]
    assert lines[3].startswith("env.wrapper.diambra_settings.step_ratio=7: must be")
    assert len(lines) == 4


def test_check_validates_game_settings_without_engine(no_engine):
    with pytest.raises(UserError) as refused:
        SUITE.check("doapp", {"diambra_settings": {"outfits": 5, "fighting_style": 3, "difficulty": 99}}, 1)
    assert str(refused.value).splitlines()[1:] == [
        "env.wrapper.diambra_settings.outfits=5: must be from 1 to 4 in doapp",
        "env.wrapper.diambra_settings.fighting_style=3: must be from 1 to 2 in doapp",
    ]


def test_open_env_reports_all_problems(no_engine, short_timeouts):
    with pytest.raises(UserError) as refused:
        open_env(SUITE, "doapp", {"diambra_settings": WRONG})
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("no engine answers at 127.0.0.1:9, and DIAMBRA_ENVS is not set")
    assert SUITE.free_instances("doapp") == 1  # the claim is given back


def test_check_reports_too_few_and_absent_engines(three_engines, short_timeouts, monkeypatch):
    monkeypatch.setenv("DIAMBRA_ENVS", f"{three_engines[0]} 127.0.0.1:9")
    with pytest.raises(UserError) as refused:
        SUITE.check("doapp", {}, 2)
    few, silent = str(refused.value).splitlines()
    assert "is 2: 3 engines are needed" in few and "DIAMBRA_ENVS names 2" in few and "-s=3" in few
    assert silent.startswith("no engine answers at 127.0.0.1:9 of DIAMBRA_ENVS")


def test_read_keys_refuses_unsupported_wrappers():
    with pytest.raises(UserError) as refused:
        read_keys({"diambra_wrappers": {"stack_actions": 4, "wrappers": [["os.system", {}]]}, "screen_size": 0})
    assert [line.partition("=")[0] for line in str(refused.value).splitlines()] == [
        "env.wrapper.screen_size",
        "env.wrapper.diambra_wrappers.stack_actions",
        "env.wrapper.diambra_wrappers.wrappers",
    ]


def test_filter_keys_refuses_unknown_observation_key(three_engines):
    with pytest.raises(
        UserError, match="filter_keys=P1_heath: not an observation key of doapp; did you mean 'P1_health'"
    ):
        open_env(SUITE, "doapp", QUICK | {"diambra_wrappers": {"filter_keys": ["P1_heath"]}})


def test_list_suite_reports_absent_engine(no_engine, three_engines, monkeypatch):
    games = list_suite(SUITES["diambra"])
    assert games.ids == tuple(SUITE.ids()) and not games.refused
    monkeypatch.delenv("DIAMBRA_ENVS")
    games = list_suite(SUITES["diambra"])
    assert not games.ids and len(set(games.refused.values())) == 1


# --- exact resume -----------------------------------------------------------------------------------------------------


def test_environment_card_of_game_has_tier_boundary(three_engines):
    config = EnvConfig(id="doapp", wrapper=QUICK, sync_env=True)
    card = environment_card(config)
    assert card["tier"] == "boundary" and card["deterministic"] and not card["fresh_instance"]
    assert "an engine that cannot be copied" in readable_card(card)
    assert EnvSpec.from_json(card["spec"]).obs["frame"].kind == "image"
    assert SUITE.free_instances("doapp") == 3


@pytest.mark.parametrize("sync", [True, False], ids=["in this process", "subprocess"])
def test_boundary_state_resumes_with_same_bits(three_engines, sync):
    config = EnvConfig(id="umk3", wrapper=QUICK, sync_env=sync)
    actions = np.random.default_rng(0).integers(0, (9, 7), (60, 1, 2))

    def vector() -> Any:
        return make_vector_env(config, num_envs=1, seed=4, tier="boundary")

    def play_bytes(envs: Any, some: np.ndarray) -> list[bytes]:
        arrivals = [envs.step(action) for action in some]
        return [b"".join(v.tobytes() for v in (*a.obs.values(), a.reward, a.truncated, a.is_first)) for a in arrivals]

    with closing(vector()) as envs:
        envs.reset()
        play_bytes(envs, actions[:30])
        assert envs.boundary().truncated.all()
        state = envs.state_dict()
        whole = play_bytes(envs, actions[30:])
    with closing(vector()) as envs:
        envs.load_state_dict(state)
        assert play_bytes(envs, actions[30:]) == whole


def test_engine_of_killed_client_can_be_claimed(three_engines):
    """A claim ends with its client; then the engine starts a new game for the next client."""
    left = open_env(SUITE, "doapp", QUICK)
    left.unwrapped.engine._claim.close()
    with closing(open_env(SUITE, "doapp", QUICK)) as env:
        env.reset(seed=0)
        with pytest.raises(Exception, match="this game is another client's"):
            left.reset(seed=0)
        left.close()
        env.step(np.array([0, 0]))
