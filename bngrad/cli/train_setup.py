"""Builds a training run from the options of ``bngrad train``."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from bngrad.cli.options import option_name
from bngrad.cli.train_display import header
from bngrad.errors import InputError
from bngrad.io.writing import check_output
from bngrad.training.checkpoints import Checkpoints, Position, best_path, resume
from bngrad.training.curve import check_plot
from bngrad.training.dataset import Dataset, data_files, load_data
from bngrad.training.fit import Fit, Plan
from bngrad.training.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, StepSchedule
from bngrad.training.step_files import evaluation_path, state_path

if TYPE_CHECKING:
    from bngrad.training.schedules import Schedule
    from bngrad.training.trainer import Trainer

_DATA = ("batch_size", "seed", "drop_last", "validation_split")
"""Options that decide which samples a step takes; a run must not change them within an epoch."""

_SCHEDULES = {
    "warmup": ("linear", "cosine"),
    "warmup_start": ("linear", "cosine"),
    "minimum": ("cosine",),
    "decay_every": ("step",),
    "decay_factor": ("step",),
}
"""The schedules that an option is for."""

_RATES = ("learning_rate", "warmup_start", "minimum", "decay_factor")
"""Options that are numbers of a schedule, which messages name as the command line does."""

_RECORDED = (*_DATA, "epochs", "patience", "learning_rate", "schedule", *_SCHEDULES)
"""Options that a checkpoint records; they apply to the resumed run unless they are given."""

OUTPUTS = ("output", "state_out", "checkpoint", "log", "plot", "html")

_BATCH_SIZE = 32


class Run(NamedTuple):
    """A training run."""

    fit: Fit
    position: Position
    epochs: int
    header: str
    """The line on the data and the model."""
    remarks: list[str]
    """The differences from the run that wrote the checkpoint."""


def check_files(step: Path, options: dict[str, Any]) -> None:
    """Checks that outputs can be written, and that they are neither the same file nor an input.

    Args:
        step: The training step.
        options: The options of the command.

    Raises:
        InputError: An output is not as it should be.
    """
    inputs = [step, evaluation_path(step), state_path(step)]
    inputs += [file for key in ("data", "validation") for source in options[key] for file in data_files(source)]
    outputs = {key: Path(options[key]) for key in OUTPUTS if options[key] is not None}
    if "checkpoint" in outputs:
        outputs["the best checkpoint"] = best_path(outputs["checkpoint"])
    if options["resume"] is not None and "checkpoint" not in outputs:
        inputs.append(best_path(options["resume"]))
    taken = {os.path.realpath(path) for path in inputs}
    existing = [path for path in inputs if path.exists()]
    for key, path in outputs.items():
        place = os.path.realpath(check_output(path))
        is_resumed = options["resume"] is not None and place == os.path.realpath(options["resume"])
        is_read = path.exists() and any(path.samefile(file) for file in existing)
        if place in taken or is_read or (is_resumed and key != "checkpoint"):
            raise InputError(
                f"output {path} is another output, or a file of the step or the data; choose another file"
            )
        taken.add(place)
    if options["plot"] is not None:
        check_plot(options["plot"])


def prepare(context: click.Context, trainer: Trainer, options: dict[str, Any]) -> Run:
    """Builds a training run, and loads the state that it begins with into the trainer.

    Args:
        context: The context of the command, which records the options that were given.
        trainer: The trainer.
        options: The options; those that a checkpoint records are completed.

    Raises:
        InputError: An option is wrong or missing, or a file cannot be read.
    """
    ranks = trainer.ranks
    position, best, recorded, remarks = Position(), None, None, []
    if options["resume"] is not None:
        resumed = resume(options["resume"], trainer, anyway=options["resume_anyway"])
        trainer.load_state_dict(resumed.state)
        position, best, recorded, remarks = resumed.position, resumed.best, resumed.options, resumed.remarks
    elif options["resume_anyway"]:
        raise InputError("--resume-anyway is for --resume, which is not given")
    with ranks.together("data and options"):
        if recorded is not None:
            options["checkpoint"] = options["checkpoint"] or options["resume"]
            _complete(context, options, recorded, within_epoch=position.batch > 0)
        training, validation = _datasets(trainer, options)
        data = _data_record(training, validation)
        if recorded is not None:
            remarks += _require_same_data(options, recorded, data, within_epoch=position.batch > 0)
            if (
                best is not None
                and recorded.get("validation data", data["validation data"]) != data["validation data"]
            ):
                best = position.best_epoch = position.best_loss = None  # losses of other data do not compare
        plan = _plan(options, training, ranks.size)
        _require_batches(plan, training, validation, ranks.size)
        batches = training.count(plan.batch_size, drop_last=plan.drop_last)
        if position.batch > batches:
            raise InputError(
                f"{options['resume']} was written after batch {position.batch} of an epoch, and an epoch has "
                f"{batches}; expected the same data and options"
            )
        trainer.learning_rate = _schedule(context, options, _updates(plan, training, trainer))
    if ranks.size > 1:
        hashes = {f"the hash of the {key}": value for key, value in data.items() if key != "samples"}
        ranks.require_same("data", hashes, "the same data")
    if validation is None:
        best = position.best_epoch = position.best_loss = None  # the run ends with its last state
    kept = {name: options[name] for name in _RECORDED} | data
    with ranks.together("checkpoint"):
        checkpoints = Checkpoints(options["checkpoint"] if ranks.is_first else None, trainer.info, kept)
    line = header(
        trainer.info,
        samples=len(training),
        validated=0 if validation is None else len(validation),
        steps=batches,
        device=str(trainer.device),
    )
    fit = Fit(trainer, plan, training, validation, checkpoints, position, best)
    return Run(fit, position, plan.epochs, line, remarks)


def warnings(trainer: Trainer, run: Run, options: dict[str, Any]) -> list[str]:
    """Returns warnings of probable mistakes."""
    messages = list(run.remarks)
    if options["resume"] is not None and trainer.is_random:
        messages.append("the step has random nodes, such as Dropout: the resumed run draws other numbers")
    if not any(options[name] for name in ("output", "state_out", "checkpoint")):
        messages.append("the trained weights are not written: give -o, --state-out or --checkpoint")
    return messages


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def _complete(
    context: click.Context, options: dict[str, Any], recorded: dict[str, Any], *, within_epoch: bool
) -> None:
    """Takes options that are not given from a checkpoint."""
    parameters = {parameter.name: parameter for parameter in context.command.params}
    for name in _RECORDED:
        if name not in recorded:
            raise InputError(f"{options['resume']} does not record the option {option_name(name)}")
        try:
            value = parameters[name].type_cast_value(context, recorded[name])
        except (click.BadParameter, AttributeError, OverflowError, TypeError, ValueError) as error:
            raise InputError(f"{options['resume']} records a wrong {option_name(name)}: {error}") from None
        if not _given(context, name):
            if value is None and options[name] is not None:  # its default
                raise InputError(f"{options['resume']} records no value of {option_name(name)}; expected one")
            options[name] = value
        elif within_epoch and name in _DATA and options[name] != value:
            raise InputError(
                f"{options['resume']} was written within an epoch with {option_name(name)} {value}, but "
                f"{options[name]} is given; expected the same until the epoch ends"
            )


def _datasets(trainer: Trainer, options: dict[str, Any]) -> tuple[Dataset, Dataset | None]:
    inputs, split = trainer.info.data, options["validation_split"]
    if options["validation"] and split is not None:
        raise InputError("both --validation and --validation-split are given; expected one of them")
    training = Dataset(load_data(options["data"], inputs), inputs)
    if split is not None:
        return training.split(split, options["seed"])
    if options["validation"]:
        return training, Dataset(load_data(options["validation"], inputs), inputs)
    return training, None


def _data_record(training: Dataset, validation: Dataset | None) -> dict[str, Any]:
    """Returns the record of the data in a checkpoint, by which the data of ranks are compared, too."""
    return {
        "samples": len(training),
        "data": training.fingerprint(),
        "validation data": None if validation is None else validation.fingerprint(),
    }


def _require_same_data(
    options: dict[str, Any], recorded: dict[str, Any], data: dict[str, Any], *, within_epoch: bool
) -> list[str]:
    """Compares the data with those of a checkpoint, and returns the differences.

    A new epoch may have other data; within an epoch the batches that are left would be those of other samples.

    Raises:
        InputError: The training data differ within an epoch.
    """
    path, remarks = options["resume"], []
    if "data" not in recorded:
        remarks.append(f"{path} does not record its training data, so they are not compared")
    differ = [key for key in ("samples", "data") if recorded.get(key, data[key]) != data[key]]
    if differ:
        numbers = f": {recorded['samples']} samples, now {data['samples']}" if "samples" in differ else ""
        text = f"{path} was trained on other data{numbers}"
        if within_epoch and not options["resume_anyway"]:
            raise InputError(
                f"{text}, and was written within an epoch; expected the same data, in the same order, until the "
                "epoch ends, or --resume-anyway"
            )
        remarks.append(text)
    was, now = recorded.get("validation data"), data["validation data"]
    if None not in (was, now) and was != now:
        remarks.append(f"{path} was validated on other data, so the lowest validation loss is searched anew")
    return remarks


def _plan(options: dict[str, Any], training: Dataset, ranks: int) -> Plan:
    size, fixed = options["batch_size"], training.batch_size
    if fixed is not None and size not in (None, fixed * ranks):
        whole = "" if ranks == 1 else f" on each of {ranks} ranks: --batch-size {fixed * ranks}"
        raise InputError(f"--batch-size is {size}, but the step takes only batches of {fixed}{whole}")
    options["batch_size"] = (fixed or 0) * ranks or size or _BATCH_SIZE
    if options["checkpoint_every"] is not None and options["checkpoint"] is None:
        raise InputError("--checkpoint-every needs --checkpoint")
    if options["patience"] is not None and not options["validation"] and options["validation_split"] is None:
        raise InputError("--patience needs a validation loss; give --validation or --validation-split")
    return Plan(
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        seed=options["seed"],
        drop_last=options["drop_last"] or fixed is not None,
        patience=options["patience"],
        checkpoint_every=options["checkpoint_every"],
        skip_not_finite=options["on_nan"] == "continue",
    )


def _require_batches(plan: Plan, training: Dataset, validation: Dataset | None, ranks: int) -> None:
    """Checks that there are batches, and that none leaves a rank without a sample."""
    batches = training.count(plan.batch_size, drop_last=plan.drop_last)
    fixed = None if validation is None else validation.batch_size
    if not batches:
        raise InputError(
            f"{len(training)} samples are too few for a batch of {plan.batch_size}; expected more data"
        )
    if validation is not None and not validation.count(fixed or 1, drop_last=True):
        raise InputError(f"{len(validation)} samples are too few for a batch of {fixed or 1}; expected more data")
    last = len(training) % plan.batch_size
    smallest = plan.batch_size if plan.drop_last or not last else last
    if smallest < ranks:
        which = "a batch" if smallest == plan.batch_size else "the last batch of an epoch"
        count = "1 sample" if smallest == 1 else f"{smallest} samples"
        raise InputError(
            f"{which} has {count} for {ranks} ranks; expected one for each: give another --batch-size"
            + ("" if smallest == plan.batch_size else ", or --drop-last")
        )


def _updates(plan: Plan, training: Dataset, trainer: Trainer) -> int:
    steps = plan.epochs * training.count(plan.batch_size, drop_last=plan.drop_last)
    updates = steps // trainer.info.accumulate
    if not updates:
        raise InputError(
            f"{steps} steps are too few for an update of the weights, which takes {trainer.info.accumulate} "
            "in this training step; expected more epochs or data"
        )
    return updates


def _check_rates(context: click.Context, kind: str, options: dict[str, Any]) -> None:
    if options["learning_rate"] is None:
        raise InputError("no learning rate is given; expected --learning-rate")
    for name, kinds in _SCHEDULES.items():
        if kind not in kinds and _given(context, name):
            raise InputError(
                f"{option_name(name)} is given, but the schedule is {kind}; "
                f"expected --schedule {' or '.join(kinds)}"
            )
    for name in _RATES:
        value = options[name]
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{option_name(name)} is {value}; expected a finite number, at least 0")


def _schedule(context: click.Context, options: dict[str, Any], updates: int) -> Schedule:
    kind, rate, warmup = options["schedule"], options["learning_rate"], options["warmup"]
    _check_rates(context, kind, options)
    match kind:
        case "linear":
            if not warmup:
                raise InputError("--schedule linear needs --warmup")
            return LinearSchedule(rate, warmup, options["warmup_start"])
        case "cosine":
            return CosineSchedule(rate, updates, options["minimum"], warmup, options["warmup_start"])
        case "step":
            if options["decay_every"] is None:
                raise InputError("--schedule step needs --decay-every")
            return StepSchedule(rate, options["decay_every"], options["decay_factor"])
    return ConstantSchedule(rate)
