# ruff: noqa: T201 - a script
"""Digits over eight clients: FedAvg and FedBN with bngrad.federated, beside one process that has all data.

    python docs/examples/federated/digits.py --rounds 20

needs scikit-learn. Each client trains the ResNet-20 of models/ for one epoch a round on its 180 images. The
classes are equal, or skewed: each client has two of sixteen shards of the images, sorted by class. The table has
accuracies of the 360 images that no client trains on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import bngrad
from bngrad.federated import average

MODEL = Path(__file__).parents[3] / "models" / "digits_resnet20.onnx"
CLIENTS, BATCH = 8, 20


class Digits:
    """The digits in a random order: the first 1437 to train on."""

    def __init__(self, seed: int) -> None:
        data = load_digits()
        order = np.random.default_rng(seed).permutation(len(data.target))
        self.images = (data.images[order, None] / 16).astype(np.float32)
        self.labels = data.target[order].astype(np.int64)
        self.test = np.arange(1437, len(order))

    def rows_of_clients(self, *, skewed: bool) -> list[np.ndarray]:
        """The rows of each client."""
        rows = np.arange(1437)
        if not skewed:
            return np.array_split(rows, CLIENTS)
        shards = np.array_split(rows[np.argsort(self.labels[rows], kind="stable")], 2 * CLIENTS)
        order = np.random.default_rng(0).permutation(2 * CLIENTS)
        return [
            np.concatenate([shards[i] for i in order[2 * client : 2 * client + 2]]) for client in range(CLIENTS)
        ]

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs of the network."""
        return {"images": self.images[rows], "labels": self.labels[rows]}


def train(trainer: bngrad.Trainer, digits: Digits, rows: np.ndarray, rng: np.random.Generator) -> None:
    """One epoch, without a small last batch."""
    order = rng.permutation(rows)
    for start in range(0, len(order) - BATCH + 1, BATCH):
        trainer.step(**digits.batch(order[start : start + BATCH]))


def hits(trainer: bngrad.Trainer, digits: Digits, rows: np.ndarray) -> np.ndarray:
    """For each row, whether the state recognizes it."""
    scores = trainer.evaluate(**digits.batch(rows))["logits"]
    return scores.argmax(axis=1) == digits.labels[rows]


def accuracies(
    trainer: bngrad.Trainer, states: list, digits: Digits, clients: list[np.ndarray]
) -> tuple[float, float]:
    """The mean accuracies of the clients' states: of all classes, and of the classes that each client has."""
    every, own = [], []
    for state, rows in zip(states, clients, strict=True):
        trainer.load_state_dict(state)
        correct = hits(trainer, digits, digits.test)
        every.append(correct.mean())
        own.append(correct[np.isin(digits.labels[digits.test], np.unique(digits.labels[rows]))].mean())
    return 100 * float(np.mean(every)), 100 * float(np.mean(own))


def federated(
    step: bngrad.TrainingStep,
    digits: Digits,
    clients: list[np.ndarray],
    rounds: int,
    rate: float,
    **options: Any,  # noqa: ANN401 - those of the average
) -> list:
    """The accuracies after each round; with options that keep a client's own tensors, each has its own state."""
    trainer = bngrad.Trainer(step, learning_rate=rate)
    states = [trainer.state_dict()] * len(clients)
    keeps_own = options.get("fedbn") or options.get("statistics") == "local"
    history = []
    for number in range(rounds):
        trained = []
        for client, (state, rows) in enumerate(zip(states, clients, strict=True)):
            trainer.load_state_dict(state)
            train(trainer, digits, rows, np.random.default_rng([number, client]))
            trained.append(trainer.state_dict())
        sizes = [len(rows) for rows in clients]
        owners = range(len(clients)) if keeps_own else [None]
        states = [average(trained, sizes, own=own, **options) for own in owners]
        states *= 1 if keeps_own else len(clients)
        history.append(accuracies(trainer, states, digits, clients))
    return history


def alone(step: bngrad.TrainingStep, digits: Digits, rounds: int, rate: float) -> list:
    """One process with all data, an epoch for each round."""
    trainer, rows = bngrad.Trainer(step, learning_rate=rate), np.arange(1437)
    history = []
    for number in range(rounds):
        train(trainer, digits, rows, np.random.default_rng([number, 0]))
        accuracy = 100 * float(hits(trainer, digits, digits.test).mean())
        history.append((accuracy, accuracy))
    return history


METHODS = {
    "FedAvg, statistics of the union": {"statistics": "merge"},
    "FedAvg, means of the statistics": {"statistics": "mean"},
    "FedBN": {"fedbn": True},
}


def main() -> None:
    """Prints a table for each division of the classes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    digits = Digits(options.seed)
    step = bngrad.training_step(MODEL, optimizer=bngrad.SGD(momentum=0.9))
    shown = [number for number in (1, 2, 5, 10, 20, 40) if number <= options.rounds]
    for skewed in (False, True):
        clients = digits.rows_of_clients(skewed=skewed)
        print(f"\n{'skewed' if skewed else 'equal'} classes\n")
        print(f"| after round | {' | '.join(map(str, shown))} |\n|---|{'---|' * len(shown)}")
        rows = {"one process": alone(step, digits, options.rounds, options.learning_rate)}
        for name, how in METHODS.items():
            rows[name] = federated(
                step, digits, clients, options.rounds, options.learning_rate, optimizer="reset", **how
            )
        for name, history in rows.items():
            texts = [f"{every:.1f}, {own:.1f}" for every, own in (history[number - 1] for number in shown)]
            print(f"| {name} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
