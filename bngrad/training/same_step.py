"""Checks that the ranks of a trainer have the same training step."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import onnxruntime

from bngrad.distributed import collective, launched
from bngrad.errors import InputError
from bngrad.io.files import as_ir, to_proto

if TYPE_CHECKING:
    from bngrad.options import Implementation
    from bngrad.training.ranks import Ranks
    from bngrad.training.training_step import TrainingStep


def require_alone(step: TrainingStep) -> None:
    """Checks that a step without a communicator is not one of several, each of which would train alone.

    A program that gave the library a collective function of its own is not checked.

    Raises:
        InputError: A launcher started several processes, and the step is synchronized.
    """
    if step.info.synchronized and (processes := launched()) and not collective.is_foreign():
        raise InputError(
            f"the training step is synchronized, and this is one of {processes} processes of an MPI launcher, "
            "which would each train alone; give comm=bngrad.distributed.Communicator()"
        )


def require_same_step(ranks: Ranks, step: TrainingStep, implementation: Implementation, rate: float) -> None:
    """Checks that several ranks can train together. The version of bngrad is compared with each collective.

    Args:
        ranks: The ranks.
        step: The training step of this rank.
        implementation: The implementation of its ops.
        rate: Its first learning rate.

    Raises:
        InputError: The step or the implementation is for a single rank.
        DistributedError: The ranks differ; see also `Communicator`.
    """
    with ranks.together("synchronized step"):
        if not step.info.synchronized:
            raise InputError(
                "the training step is not synchronized, so each rank would train by itself; make it with "
                "bngrad step --sync"
            )
        if implementation == "function":
            raise InputError(
                "the implementation is function, which has no collectives; expected native or python with several "
                "ranks"
            )
    values = {
        "ONNX Runtime": onnxruntime.__version__,
        "the implementation": implementation,
        "the fingerprint of the training step": hash_of_model(step),
        "the learning rate": rate,
    }
    ranks.require_same("training step", values, "the same training step, versions and learning rate")


def hash_of_model(step: TrainingStep) -> str:
    """A hash of the model of a step with all its constants, also those in external data."""
    whole = to_proto(as_ir(step.model))
    return hashlib.sha256(whole.SerializeToString(deterministic=True)).hexdigest()[:16]
