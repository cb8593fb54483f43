# ruff: noqa: T201 - a script
"""Digits over the clients of Flower, whose strategy averages with bngrad.federated.

    python docs/examples/federated/flower.py --rounds 5

needs scikit-learn and Flower, `pip install 'flwr[simulation]'`. Flower starts the clients and carries the weights
and running statistics; the momentum begins anew in each round. The rounds are those of digits.py with skewed
classes and the statistics of the union. pyproject.toml makes an app of this file, for clients on several machines:
`flwr run docs/examples/federated`. The table compares each average with that of Flower's own FedAvg, from the
same replies.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import numpy as np
from digits import CLIENTS, MODEL, Digits, hits, train

import bngrad
from bngrad.federated import average

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

if TYPE_CHECKING:
    from collections.abc import Iterable

SENT = ("weight", "running_statistic")


def new_trainer(context: Context) -> bngrad.Trainer:
    """The trainer of a client, or of the server, in the initial state."""
    model = context.run_config.get("model") or MODEL
    step = bngrad.training_step(model, optimizer=bngrad.SGD(momentum=0.9))
    return bngrad.Trainer(step, learning_rate=0.05)


def to_record(trainer: bngrad.Trainer) -> ArrayRecord:
    """The weights and running statistics of a trainer, as Flower sends them."""
    state = trainer.state_dict()
    return ArrayRecord({name: Array(state[name]) for name in trainer.info.names(*SENT)})


def to_state(record: ArrayRecord, trainer: bngrad.Trainer) -> dict[str, np.ndarray]:
    """The state of a trainer with the arrays of a record in it."""
    state = trainer.state_dict()
    state.update({name: array.numpy() for name, array in record.items()})
    return state


client = ClientApp()


@client.train()
def train_round(message: Message, context: Context) -> Message:
    """Trains one epoch on the images of a client."""
    digits, trainer, number = Digits(0), new_trainer(context), int(context.node_config["partition-id"])
    rows = digits.rows_of_clients(skewed=True)[number]
    trainer.load_state_dict(to_state(message.content["arrays"], trainer))
    rng = np.random.default_rng([message.content["config"]["server-round"] - 1, number])
    train(trainer, digits, rows, rng)
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": to_record(trainer), "metrics": metrics}), reply_to=message)


class BatchNormAverage(FedAvg):
    """Flower's FedAvg, with the average of bngrad.

    Args:
        trainer: The trainer whose state the averages are.
        digits: The data.
    """

    def __init__(self, trainer: bngrad.Trainer, digits: Digits) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._trainer, self._digits = trainer, digits

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies of a round, and compares with Flower's average."""
        replies = list(replies)
        theirs, metrics = super().aggregate_train(server_round, replies)
        if any(reply.has_error() for reply in replies):
            raise RuntimeError(next(reply.error.reason for reply in replies if reply.has_error()))
        states = [to_state(reply.content["arrays"], self._trainer) for reply in replies]
        samples = [int(reply.content["metrics"]["num-examples"]) for reply in replies]
        means = average(states, samples, statistics="mean", optimizer="reset")
        difference = max(np.abs(means[name] - array.numpy()).max() for name, array in theirs.items())
        state = average(states, samples, statistics="merge", optimizer="reset")
        variances = [norm.var for norm in self._trainer.info.batch_norms if norm.var]
        ratio = max(float((state[name] / theirs[name].numpy()).max()) for name in variances)
        self._trainer.load_state_dict(state)
        accuracy = hits(self._trainer, self._digits, self._digits.test).mean()
        print(f"| {server_round} | {100 * accuracy:.1f} | {difference:.1e} | {ratio:.3f} |", flush=True)
        return to_record(self._trainer), metrics


server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Runs the rounds."""
    print("| after round | accuracy | difference of the means | ratio of the variances |\n|---|---|---|---|")
    trainer = new_trainer(context)
    strategy = BatchNormAverage(trainer, Digits(0))
    rounds = context.run_config.get("rounds") or options().rounds
    strategy.start(grid, to_record(trainer), num_rounds=rounds)


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Runs the simulation."""
    options()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)


if __name__ == "__main__":
    main()
