"""Positions of the velocities in observation vectors, by environment id (for `env.mask_velocities`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Layout(NamedTuple):
    """Layout of an observation vector: its length, and the positions of the velocities.

    Attributes:
        size: length of the vector.
        velocities: indices of the velocities.
    """

    size: int
    velocities: Sequence[int]


# LunarLander: position, velocity, angle, angular velocity, two contacts.
LANDER = Layout(8, (2, 3, 5))
# Hull: angle, angular velocity, two velocities. Each leg: angle and speed of two joints, contact. Then ten lidar rays.
WALKER = Layout(24, (1, 2, 3, 5, 7, 10, 12))
# MuJoCo: positions, then qvel. Humanoid also observes cvel (velocities of its bodies' centers of mass), after cinert.
MUJOCO = {
    "HalfCheetah-v4": Layout(17, range(8, 17)),
    "HalfCheetah-v5": Layout(17, range(8, 17)),
    "Hopper-v4": Layout(11, range(5, 11)),
    "Hopper-v5": Layout(11, range(5, 11)),
    "Walker2d-v4": Layout(17, range(8, 17)),
    "Walker2d-v5": Layout(17, range(8, 17)),
    "Ant-v4": Layout(27, range(13, 27)),
    "Ant-v5": Layout(105, range(13, 27)),
    "Humanoid-v4": Layout(376, (*range(22, 45), *range(185, 269))),
    "Humanoid-v5": Layout(348, (*range(22, 45), *range(175, 253))),
    "HumanoidStandup-v4": Layout(376, (*range(22, 45), *range(185, 269))),
    "HumanoidStandup-v5": Layout(348, (*range(22, 45), *range(175, 253))),
    "InvertedPendulum-v4": Layout(4, range(2, 4)),
    "InvertedPendulum-v5": Layout(4, range(2, 4)),
    "InvertedDoublePendulum-v4": Layout(11, range(5, 8)),
    "InvertedDoublePendulum-v5": Layout(9, range(5, 8)),
    "Swimmer-v4": Layout(8, range(3, 8)),
    "Swimmer-v5": Layout(8, range(3, 8)),
    "Reacher-v4": Layout(11, range(6, 8)),
    "Reacher-v5": Layout(10, range(6, 8)),
    "Pusher-v5": Layout(23, range(7, 14)),
}
LAYOUTS = {
    "CartPole-v0": Layout(4, (1, 3)),
    "CartPole-v1": Layout(4, (1, 3)),
    "Acrobot-v1": Layout(6, (4, 5)),
    "MountainCar-v0": Layout(2, (1,)),
    "MountainCarContinuous-v0": Layout(2, (1,)),
    "Pendulum-v1": Layout(3, (2,)),
    "LunarLander-v2": LANDER,
    "LunarLander-v3": LANDER,
    "LunarLanderContinuous-v2": LANDER,
    "LunarLanderContinuous-v3": LANDER,
    "BipedalWalker-v3": WALKER,
    "BipedalWalkerHardcore-v3": WALKER,
} | MUJOCO
