"""Cases of a campaign: a mutated model and the five commands to run on it.

A case is a function of the campaign's seed and the case's index, so that it can be reproduced.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import onnx

from fuzz import mutate_bytes, mutate_models, mutate_nodes, mutate_values
from fuzz.draw import Draw
from fuzz.seeds import Seed, seeds

MODEL, WEIGHTS, OUTPUT = "model.onnx", "weights.npz", "out.onnx"
BESIDE = ("out.eval.onnx", "out.safetensors", "out.html", "out.sarif", "out.txt")
"""The other files that a command may write."""

SHARES = {"op": 6, "gradient": 6, "net": 5, "training": 1, "dialect": 5}
"""The relative frequencies of the groups of seeds; a training graph takes as much time as ten other seeds."""

MUTATIONS = (*mutate_nodes.MUTATIONS, *mutate_values.MUTATIONS, *mutate_models.MUTATIONS)


class Case(NamedTuple):
    """A case."""

    story: str
    """The names of the seed model and of its mutations."""
    content: bytes
    """The content of the model file."""
    weights: bytes
    """The content of the .npz file."""
    commands: tuple[tuple[str, ...], ...]
    """The arguments of bngrad for each command."""
    output_exists: bool
    """True if the output file exists before each command."""


def make(campaign: int, index: int) -> Case:
    """Returns the case with this index in the campaign with this seed."""
    draw = Draw(campaign, index)
    seed = _pick(draw)
    if draw.chance(0.25):
        done, content = _mutate_bytes(draw, seed)
    else:
        done, content = _mutate_model(draw, seed)
    weights = npz(seed.weights if draw.chance(0.5) else {})
    story = f"{seed.name}: {', '.join(done)}"
    return Case(story, content, weights, tuple(_commands(draw, seed)), draw.chance(0.2))


def _pick(draw: Draw) -> Seed:
    (group,) = draw.choices(list(SHARES), list(SHARES.values()))
    seed: Seed = draw.choice(seeds()[group])()
    return seed


def _mutate_bytes(draw: Draw, seed: Seed) -> tuple[list[str], bytes]:
    data, done = bytearray(seed.content), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        mutation = draw.choice(mutate_bytes.MUTATIONS)
        if data:
            mutation(draw, data)
            done.append(mutation.__name__)
    return done, bytes(data)


def _mutate_model(draw: Draw, seed: Seed) -> tuple[list[str], bytes]:
    model, done = onnx.ModelProto.FromString(seed.content), []
    if draw.chance(0.04):
        other = _pick(draw)
        mutate_models.splice(draw, model, onnx.ModelProto.FromString(other.content))
        done.append(f"splice {other.name}")
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        mutation = draw.choice(MUTATIONS)
        mutation(draw, model)
        done.append(f"{mutation.__module__.rpartition('_')[2]}.{mutation.__name__}")
    return done, model.SerializeToString()


def _commands(draw: Draw, seed: Seed):
    json = ["--json"] if draw.chance(0.2) else []
    functions = ["--no-functions"] if draw.chance(0.2) else []
    fuse = ["--no-fuse"] if draw.chance(0.2) else []
    reports = (
        ["--html", "out.html", "--sarif", "out.sarif", "--annotations", "out.txt"] if draw.chance(0.1) else []
    )
    yield ("inspect", MODEL, *reports, *json)
    target = ["--target", draw.choice(("stock", "stock", "stock", "training"))]
    yield ("rewrite", MODEL, "-o", OUTPUT, *target, *functions, *fuse, *json)
    target = ["--target", draw.choice(("stock", "stock", "stock", "training", "ort"))]
    loss = ["--loss", "loss"] if draw.chance(0.3) else []
    wrt = ["--wrt", draw.choice([*seed.weights, "x"])] if draw.chance(0.4) else []
    mode = [draw.choice(("--frozen", "--training")), "*"] if draw.chance(0.1) else []
    yield ("differentiate", MODEL, "-o", OUTPUT, *target, *loss, *wrt, *mode, *functions, *fuse, *json)
    optimizer = draw.choice(("sgd", "adam", "adamw"))
    yield ("step", MODEL, "-o", OUTPUT, "--optimizer", optimizer, *loss, *wrt, *mode, *functions, *fuse, *json)
    keep = ["--keep", draw.choice(("loss", "y"))] if draw.chance(0.5) else []
    yield ("finalize", MODEL, "-o", OUTPUT, "--weights", WEIGHTS, *keep, *json)


def npz(weights: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **weights)
    return file.getvalue()
