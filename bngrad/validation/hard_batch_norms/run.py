"""The check of another system with the cases: `bngrad validate --suite hard-batch-norms SUBJECT`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime

from bngrad.errors import BngradError, DeviceError, InputError
from bngrad.graph.name_messages import listed, near_names
from bngrad.io.arrays import load_arrays
from bngrad.runtime.device import PROVIDERS
from bngrad.runtime.environment import environment
from bngrad.runtime.session import register_library, session
from bngrad.validation.hard_batch_norms.cases import cases
from bngrad.validation.hard_batch_norms.models import training_model
from bngrad.validation.implementations import available_implementations
from bngrad.validation.lockstep import EXACT
from bngrad.validation.report import Check, Report
from bngrad.validation.rows import compared, named_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.options import Implementation
    from bngrad.validation.checks import Progress
    from bngrad.validation.hard_batch_norms.case import Case

    Array = NDArray[Any]
    System = Callable[[Case], Mapping[str, Array]]
    """Computes the outputs of a case, as far as it can."""


def check_hard_batch_norms(
    subject: str,
    implementation: Literal[Implementation, "all"] = "all",
    progress: Progress = lambda _stage, _fraction: None,
) -> Report:
    """Compares what a system computes for each case with float64.

    Args:
        subject: An execution provider of ONNX Runtime; a custom-op library with ops of the domain ``bngrad``; or
            an .npz file of results, with an array ``CASE/OUTPUT`` for each output of each case.
        implementation: The implementations of the ops that a provider is asked to run.
        progress: Called with the stage and its completed fraction.

    Raises:
        DeviceError: The device of the provider is missing, or ONNX Runtime cannot load the provider.
        InputError: The subject is none of these, or the file has an array of another name.
    """
    systems, notes = _systems(subject, implementation)
    all_cases = cases()
    check = Check("hard batch norms", unit="of its bound", limit=1.0, required=True)
    missing: list[str] = []
    for done, case in enumerate(all_cases):
        progress(case.name, done / len(all_cases))
        expected = case.expected()
        for name, system in systems.items():
            if name == "python" and case.arrays["X"].dtype == np.float16:
                check.notes.append(f"{case.name}: the python implementation does not support float16")
                continue
            results = _results_or_reason(system, case)
            if isinstance(results, str):
                check.rows.append(named_row(case.name, case.outputs[0], case.name, name, EXACT, results))
                continue
            missing += [f"{case.name}/{output}" for output in case.outputs if output not in results]
            for output, (value, bound) in expected.items():
                if output in results:
                    row = named_row(case.name, output, case.name, name, EXACT)
                    row = compared(row, results[output], value, bound)
                    check.rows.append(row if row.passed else replace(row, note=row.note or case.pitfall))
    checks = [check]
    if missing:
        reason = f"{subject} has no {listed(missing)}"
        checks.append(Check("all results", unit="", limit=0.0, skipped=reason, required=True))
    nodes = {"BatchNormalization": len(all_cases)}
    return Report(subject, nodes, EXACT, list(systems), 0, {}, checks, notes, environment=environment())


def _results_or_reason(system: System, case: Case) -> Mapping[str, Array] | str:
    """Returns what a system computes for a case, or the reason why it does not."""
    try:
        return system(case)
    except BngradError:
        raise
    except Exception as error:  # noqa: BLE001 - any error is a finding of this case
        return " ".join(str(error).split())


def _systems(subject: str, implementation: Literal[Implementation, "all"]) -> tuple[dict[str, System], list[str]]:
    """Returns the systems to check by name, and notes on those that are left out."""
    if subject in onnxruntime.get_all_providers():
        implementations, notes = available_implementations(implementation)
        return _provider(subject, implementations), notes
    if not Path(subject).is_file():
        raise InputError(
            f"{subject} is no execution provider of ONNX Runtime, and no file; expected a provider such as "
            f"{next(iter(PROVIDERS))!r}, a custom-op library, or an .npz file of results"
            f"{_did_you_mean(subject, onnxruntime.get_available_providers())}"
        )
    if implementation != "all":
        raise InputError(f"implementation {implementation!r} is for execution providers, and {subject} is a file")
    if Path(subject).suffix == ".npz":
        return {"results": _results(subject)}, []
    options = _session_options()
    register_library(options, subject)
    return {"library": _runs(lambda model: onnxruntime.InferenceSession(_bytes(model), options))}, []


def _provider(provider: str, implementations: Sequence[Implementation]) -> dict[str, System]:
    if provider in PROVIDERS:
        device = PROVIDERS[provider]
        return {name: _runs(partial(session, implementation=name, device=device)) for name in implementations}

    if provider not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"onnxruntime {onnxruntime.__version__} is built without {provider}; it has "
            f"{listed(onnxruntime.get_available_providers())}"
        )

    def load(model: ir.Model) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(_bytes(model), _session_options(), providers=[provider])

    return {"function": _runs(load)}


def _runs(load: Callable[[ir.Model], onnxruntime.InferenceSession]) -> System:
    """Returns the system that runs the training graph of a case in a session."""

    def system(case: Case) -> dict[str, Array]:
        outputs = load(training_model(case)).run(case.outputs, dict(case.arrays))
        return dict(zip(case.outputs, outputs, strict=True))

    return system


def _results(path: str) -> System:
    """Returns the system whose results are in a file."""
    arrays = load_arrays(path)
    names = [f"{case.name}/{output}" for case in cases() for output in case.outputs]
    if unknown := [name for name in arrays if name not in names]:
        hint = _did_you_mean(unknown[0], names)
        raise InputError(f"{path} has an array {unknown[0]!r}; expected CASE/OUTPUT, such as {names[0]!r}{hint}")
    if unreal := [name for name, array in arrays.items() if array.dtype.kind not in "fiu"]:
        raise InputError(f"{path} has {unreal[0]!r} in {arrays[unreal[0]].dtype}; expected real numbers")
    return lambda case: {name: arrays[key] for name in case.outputs if (key := f"{case.name}/{name}") in arrays}


def _session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is a row
    return options


def _bytes(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString())


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    near = near_names(name, names)
    return f"; did you mean {listed(near, 'or')}?" if near else ""
