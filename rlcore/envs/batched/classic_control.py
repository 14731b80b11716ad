"""Classic control tasks of Gymnasium as batched environments, with equal dynamics, rewards and time limits.

States are float32, unless the caller sets a `state` of another dtype; observations and rewards are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched.env import BatchedEnv, Transition, column


class CartPole(BatchedEnv):
    """CartPole-v1: push a cart to the left (0) or right (1) so that the pole on it stays upright.

    The equations are those of Florian (2007), without friction; the task is that of Barto, Sutton and Anderson (1983).
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)
    max_episode_steps = 500

    position_limit, angle_limit = 2.4, math.radians(12)

    @dataclass(frozen=True)
    class Config:
        """Gravity in m/s², masses in kg, half the length of the pole in m, force in N, and time per step in s."""

        gravity: float = 9.8
        cart_mass: float = 1.0
        pole_mass: float = 0.1
        length: float = 0.5
        force: float = 10.0
        tau: float = 0.02

    def reset(self, config: Any) -> Tensor:
        """Draw position, velocity, angle and angular velocity from [-0.05, 0.05)."""
        values = self.random.uniform(-0.05, 0.05, 4)
        self.state = {"values": values}
        return values

    def step(self, action: Tensor) -> Transition:
        """Integrate one step with Euler's method; the reward is 1."""
        values = self._move((2 * action - 1) * self.config.force)
        fallen = (values[:, 0].abs() > self.position_limit) | (values[:, 2].abs() > self.angle_limit)
        return values.float(), self.ones(), fallen

    def _move(self, force: Tensor) -> Tensor:
        """Update the state with a force [B] on the cart; return the new state [B, 4]."""
        config, (_, velocity, angle, spin) = self.config, self.state["values"].unbind(1)
        mass, moment = config.cart_mass + config.pole_mass, config.pole_mass * config.length
        cos, sin = angle.cos(), angle.sin()
        push = (force + moment * spin.square() * sin) / mass
        inertia = config.length * (4.0 / 3.0 - config.pole_mass * cos.square() / mass)
        angular = (config.gravity * sin - cos * push) / inertia
        linear = push - moment * angular * cos / mass
        rates = torch.stack([velocity, linear, spin, angular], 1)
        values = self.state["values"] + column(config.tau) * rates
        self.state = {"values": values}
        return values


class Acrobot(BatchedEnv):
    """Acrobot-v1: swing the end of two links above a line, by a torque of -1, 0 or 1 at the joint between them.

    The equations are those of Sutton and Barto (1998), integrated with the Runge-Kutta method of order 4.
    """

    observation_space = spaces.Box(
        np.array([-1, -1, -1, -1, -4 * np.pi, -9 * np.pi], np.float32),
        np.array([1, 1, 1, 1, 4 * np.pi, 9 * np.pi], np.float32),
    )
    action_space = spaces.Discrete(3)
    max_episode_steps = 500

    # Both links have length, mass and moment of inertia 1; their centers of mass are in their middle.
    dt, middle = 0.2, 0.5
    fastest = (4 * math.pi, 9 * math.pi)

    @dataclass(frozen=True)
    class Config:
        """Gravity in m/s²."""

        gravity: float = 9.8

    def reset(self, config: Any) -> Tensor:
        """Draw both angles and their velocities from [-0.1, 0.1)."""
        self.state = {"values": self.random.uniform(-0.1, 0.1, 4)}
        return self._obs()

    def step(self, action: Tensor) -> Transition:
        """Integrate one step; the reward is -1, and 0 if the end of the links is above the line."""
        values, torque, dt = self.state["values"], action - 1, self.dt
        first = self._rates(values, torque)
        second = self._rates(values + dt / 2 * first, torque)
        third = self._rates(values + dt / 2 * second, torque)
        fourth = self._rates(values + dt * third, torque)
        values = values + dt / 6 * (first + 2 * second + 2 * third + fourth)
        angles, speeds = values.split(2, 1)
        angles = angles - 2 * math.pi * ((angles - math.pi) / (2 * math.pi)).ceil()
        bounded = [part.clamp(-most, most) for part, most in zip(speeds.unbind(1), self.fastest, strict=True)]
        self.state = {"values": torch.cat([angles, torch.stack(bounded, 1)], 1)}
        above = -angles[:, 0].cos() - angles.sum(1).cos() > 1.0
        return self._obs(), above.float() - 1, above

    def _rates(self, values: Tensor, torque: Tensor) -> Tensor:
        """Return the time derivatives of angles and velocities, [B, 4]."""
        angle1, angle2, speed1, speed2 = values.unbind(1)
        weight = self.middle * self.config.gravity  # of the second link, relative to the joint
        cos2, sin2 = angle2.cos(), angle2.sin()
        inertia1 = self.middle**2 + (1 + self.middle**2 + 2 * self.middle * cos2) + 2
        inertia2 = self.middle**2 + self.middle * cos2 + 1
        pull2 = weight * (angle1 + angle2 - math.pi / 2).cos()
        pull1 = (
            -self.middle * speed2.square() * sin2
            - 2 * self.middle * speed2 * speed1 * sin2
            + (self.middle + 1) * self.config.gravity * (angle1 - math.pi / 2).cos()
            + pull2
        )
        change2 = torque + inertia2 / inertia1 * pull1 - self.middle * speed1.square() * sin2 - pull2
        change2 = change2 / (self.middle**2 + 1 - inertia2.square() / inertia1)
        change1 = -(inertia2 * change2 + pull1) / inertia1
        return torch.stack([speed1, speed2, change1, change2], 1)

    def _obs(self) -> Tensor:
        angle1, angle2, speed1, speed2 = self.state["values"].unbind(1)
        return torch.stack([angle1.cos(), angle1.sin(), angle2.cos(), angle2.sin(), speed1, speed2], 1).float()


class MountainCar(BatchedEnv):
    """MountainCar-v0 (Moore 1990): drive a weak car up a hill; actions accelerate left, not at all, or right."""

    observation_space = spaces.Box(np.array([-1.2, -0.07], np.float32), np.array([0.6, 0.07], np.float32))
    action_space: Any = spaces.Discrete(3)
    max_episode_steps = 200

    left_end, right_end, fastest = -1.2, 0.6, 0.07

    @dataclass(frozen=True)
    class Config:
        """Position of the goal; acceleration by gravity and by the engine, per squared step."""

        goal: float = 0.5
        gravity: float = 0.0025
        force: float = 0.001

    def reset(self, config: Any) -> Tensor:
        """Draw the position from [-0.6, -0.4); the velocity is 0."""
        position = self.random.uniform(-0.6, -0.4)
        self.state = {"position": position, "velocity": torch.zeros_like(position)}
        return self._obs()

    def step(self, action: Tensor) -> Transition:
        """Accelerate; the reward is -1."""
        reached = self._move(self.config.force * (action - 1).to(self.state["position"].dtype))
        return self._obs(), -self.ones(), reached

    def _move(self, acceleration: Tensor) -> Tensor:
        """Update position and velocity; return [B] bool, True if the goal is reached."""
        position, velocity = self.state["position"], self.state["velocity"]
        velocity = velocity + acceleration - self.config.gravity * (3 * position).cos()
        velocity = velocity.clamp(-self.fastest, self.fastest)
        position = (position + velocity).clamp(self.left_end, self.right_end)
        stopped = (position <= self.left_end) & (velocity < 0)
        velocity = velocity.masked_fill(stopped, 0)
        self.state = {"position": position, "velocity": velocity}
        return (position >= self.config.goal) & (velocity >= 0)

    def _obs(self) -> Tensor:
        return torch.stack([self.state["position"], self.state["velocity"]], 1).float()


class MountainCarContinuous(MountainCar):
    """MountainCarContinuous-v0: the same hill with a continuous force from -1 to 1."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    max_episode_steps = 999

    @dataclass(frozen=True)
    class Config(MountainCar.Config):
        """Parameters of the hill, with the goal and the force of this task."""

        goal: float = 0.45
        force: float = 0.0015

    def step(self, action: Tensor) -> Transition:
        """Accelerate; the reward is 100 at the goal, minus a tenth of the squared action."""
        reached = self._move(self.config.force * action[:, 0].clamp(-1, 1))
        return self._obs(), 100.0 * reached - 0.1 * action[:, 0].square(), reached


class Pendulum(BatchedEnv):
    """Pendulum-v1: swing up a pendulum by a torque from -2 to 2, and hold it upright; an episode has 200 steps."""

    observation_space = spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    max_episode_steps = 200

    fastest, strongest = 8.0, 2.0

    @dataclass(frozen=True)
    class Config:
        """Gravity in m/s², length in m, mass in kg, and time per step in s."""

        gravity: float = 10.0
        length: float = 1.0
        mass: float = 1.0
        dt: float = 0.05

    def reset(self, config: Any) -> Tensor:
        """Draw the angle from [-π, π) and the angular velocity from [-1, 1)."""
        angle, speed = self.random.uniform(-1.0, 1.0, 2).unbind(1)
        self.state = {"angle": math.pi * angle, "speed": speed}
        return self._obs()

    def step(self, action: Tensor) -> Transition:
        """Integrate one step; the reward is minus the cost of angle, angular velocity and torque before the step."""
        angle, speed, config = self.state["angle"], self.state["speed"], self.config
        torque = action[:, 0].clamp(-self.strongest, self.strongest)
        upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        pull, push = 3 * config.gravity / (2 * config.length), 3.0 / (config.mass * config.length**2)
        speed = speed + (pull * angle.sin() + push * torque) * config.dt
        speed = speed.clamp(-self.fastest, self.fastest)
        self.state = {"angle": angle + config.dt * speed, "speed": speed}
        return self._obs(), -cost, torch.zeros_like(angle, dtype=torch.bool)

    def _obs(self) -> Tensor:
        angle, speed = self.state["angle"], self.state["speed"]
        return torch.stack([angle.cos(), angle.sin(), speed], 1).float()
