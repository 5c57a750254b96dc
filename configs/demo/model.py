"""What the demo learns: which arm of a spiral a point lies on. A small MLP with gradients by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ARMS = 3
HIDDEN = 64
SIZES = (2, HIDDEN, HIDDEN, ARMS)

Array = np.ndarray


def make_shard(rank: int, points: int = 4096) -> tuple[Array, Array]:
    """The points that this rank alone trains on: coordinates (points, 2) and their arm (points,)."""
    rng = np.random.default_rng([2026, rank])
    arm = rng.integers(0, ARMS, points)
    along = rng.uniform(0.05, 1.0, points)
    angle = 2 * np.pi * (arm / ARMS + 1.5 * along) + rng.normal(0.0, 0.10, points)
    return np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1), arm


class Mlp:
    """Two hidden layers of ReLU and a softmax. All parameters live in one flat vector, `theta`."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        parts: list[Array] = []
        for fan_in, fan_out in pairwise(SIZES):
            parts += [rng.normal(0.0, np.sqrt(2 / fan_in), fan_in * fan_out), np.zeros(fan_out)]
        self.theta = np.concatenate(parts)

    def layers(self, flat: Array) -> list[tuple[Array, Array]]:
        """Views of `flat` as (weights, bias) of each layer."""
        found, at = [], 0
        for fan_in, fan_out in pairwise(SIZES):
            weights = flat[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
            at += fan_in * fan_out
            found.append((weights, flat[at : at + fan_out]))
            at += fan_out
        return found

    def loss_and_grad(self, x: Array, y: Array) -> tuple[float, float, Array]:
        """Mean cross-entropy, accuracy, and the gradient by `theta`, of one batch."""
        layers = self.layers(self.theta)
        inputs = [x]
        for weights, bias in layers[:-1]:
            inputs.append(np.maximum(inputs[-1] @ weights + bias, 0.0))
        logits = inputs[-1] @ layers[-1][0] + layers[-1][1]
        logits = logits - logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = np.arange(len(y))
        loss, accuracy = float(-log_p[rows, y].mean()), float((logits.argmax(axis=1) == y).mean())

        delta = np.exp(log_p)
        delta[rows, y] -= 1.0
        delta /= len(y)
        grad = np.empty_like(self.theta)
        for (weights, _), (grad_weights, grad_bias), given in reversed(
            list(zip(layers, self.layers(grad), inputs, strict=True))
        ):
            grad_weights[...] = given.T @ delta
            grad_bias[...] = delta.sum(axis=0)
            delta = (delta @ weights.T) * (given > 0)
        return loss, accuracy, grad


@dataclass
class Adam:
    """Adam with bias correction (Kingma and Ba, 2015, algorithm 1); its state is part of a checkpoint."""

    m: Array
    v: Array
    t: int = 0

    def update(self, theta: Array, grad: Array, lr: float) -> None:
        """Move `theta` in place."""
        self.t += 1
        self.m += 0.1 * (grad - self.m)
        self.v += 0.001 * (grad * grad - self.v)
        theta -= lr * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8)
