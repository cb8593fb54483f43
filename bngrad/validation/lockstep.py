"""The lock-step check: compares each batch norm by itself, with its input values in the original graph.

Comparing whole graphs with a tolerance proves little, because the kinks of ReLU and max pooling amplify rounding
errors in a deep network. In lock-step, each node gets the original's inputs, so that errors do not propagate, the
bound is that of one node's arithmetic, and the report names the node.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.runtime.device import CPU
from bngrad.runtime.session import session
from bngrad.validation.replacements import Replacements
from bngrad.validation.report import Check, Row
from bngrad.validation.rows import compared, named_row
from bngrad.validation.sites import Site
from bngrad.validation.statistics import WorstSubjects
from bngrad.validation.step_bounds import bounds
from bngrad.validation.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from onnxruntime import InferenceSession

    from bngrad.options import Implementation

    Array = NDArray[Any]
    Capture = Callable[[Sequence[str]], Iterator[dict[str, Array]]]
    """Yields the original graph's values by name, in chunks, in the requested order."""


EXACT = "float64"
"""The name of the exact outputs in reports."""


class Tolerance(NamedTuple):
    """A tolerance instead of the derived bounds: |got - expected| <= atol + rtol |expected|."""

    rtol: float
    atol: float


def lock_step(
    rewritten: ir.Model,
    sites: Sequence[Site | Step],
    capture: Capture,
    *,
    implementations: Sequence[Implementation],
    against: str,
    device: str = CPU,
    tolerance: Tolerance | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Compares the replacement of each site with the original's captured outputs and with float64.

    Args:
        rewritten: The rewritten model.
        sites: The batch norms of the original, and its other steps, which are not compared with float64.
        capture: Returns the original's values.
        implementations: The implementations to run, each on the installed ONNX Runtime.
        against: The name of the captured values in the report; `EXACT` if captured outputs must not be compared
            with, because they were computed in float64 from inputs that were not rounded.
        device: The device to run on.
        tolerance: Replaces the derived bounds.
        progress: Called with the number of completed sites and of all sites.

    Returns:
        The check. A row's measure is the largest ratio of an element's error to its bound. Against another
        implementation the bound is doubled, because both have rounding errors.
    """
    check, worst = Check("lock-step", unit="of its bound", limit=1.0), WorstSubjects()
    replacements = Replacements(rewritten)
    for done, (site, values) in enumerate(_values_of(sites, capture), start=1):
        rows = _compare(replacements, site, values, implementations, against, device, tolerance)
        check.rows += rows
        for row in rows:
            worst.offer(site.name, row.measure, partial(_tensors, site, values))
        progress(done, len(sites))
    check.statistics = worst.worst_first()
    return check


def _tensors(site: Site | Step, values: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """Yields the inputs of a site, and its outputs in the original."""
    for name in dict.fromkeys(site.inputs if isinstance(site, Site) else site.reads):
        yield "input", name, values[name]
    for name in site.outputs.values():
        yield "expected", name, values[name]


def _values_of(sites: Sequence[Site | Step], capture: Capture) -> Iterator[tuple[Site | Step, dict[str, Array]]]:
    """Yields each site when its values are available; a value is kept until its last use."""
    needed = [site.values for site in sites]
    last_use = {name: index for index, names in enumerate(needed) for name in names}
    values: dict[str, Array] = {}
    index = 0
    for chunk in capture(list(dict.fromkeys(name for names in needed for name in names))):
        values.update(chunk)
        while index < len(sites) and all(name in values for name in needed[index]):
            yield sites[index], values
            for name in needed[index]:
                if last_use[name] == index:
                    values.pop(name, None)
            index += 1
    assert index == len(sites), "the capture yields every requested value"  # noqa: S101


def _compare(
    replacements: Replacements,
    site: Site | Step,
    values: Mapping[str, Array],
    implementations: Sequence[Implementation],
    against: str,
    device: str,
    tolerance: Tolerance | None,
) -> list[Row]:
    """Returns the rows of a site: each output by each implementation, against the captured and the exact value."""
    names = list(site.outputs.values())
    if isinstance(site, Step) and not site.own_nodes:
        # Standard ONNX does not depend on the implementation.
        implementations = ("function",)
    try:
        model = ir.to_proto(replacements.of(site, values))
    except ValueError as error:
        return [
            _row_of(site, names[0], implementation, against, _one_line(error))
            for implementation in implementations
        ]
    rows = []
    for implementation in implementations:
        try:
            runner = session(model, implementation, device=device)
            # Weights are inputs with defaults, and the bounds are computed by feeding other values.
            inputs = (*runner.get_inputs(), *runner.get_overridable_initializers())
            feeds = {i.name: values[i.name] for i in inputs}

            def run(inputs: Mapping[str, Array], runner: InferenceSession = runner) -> dict[str, Array]:
                return dict(zip(names, runner.run(names, inputs), strict=True))

            results = run(feeds)
            targets = list(_targets(site, run, feeds, values, results, against))
        except Exception as error:  # noqa: BLE001 - any error is a finding of this node
            rows.append(_row_of(site, names[0], implementation, against, _one_line(error)))
            continue
        for name, other, want, bound in targets:
            allowed = bound if tolerance is None else tolerance.atol + tolerance.rtol * np.abs(want)
            rows.append(compared(_row_of(site, name, implementation, other), results[name], want, allowed))
    return rows


def _targets(
    site: Site | Step,
    run: Callable[[Mapping[str, Array]], dict[str, Array]],
    feeds: Mapping[str, Array],
    values: Mapping[str, Array],
    results: Mapping[str, Array],
    against: str,
) -> Iterator[tuple[str, str, Array, Array]]:
    """Yields the reference for each output: its name, the name of the reference, the value, and the bound."""
    if isinstance(site, Step):
        for name, bound in bounds(site, run, feeds, values, results).items():
            yield name, against, values[name], 2.0 * bound
        return
    expected = site.expected(values)
    for name in site.outputs.values():
        exact, bound = expected[name]
        if against != EXACT:
            yield name, against, values[name], 2.0 * bound
        yield name, EXACT, exact, bound


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _row_of(site: Site | Step, tensor: str, implementation: str, against: str, note: str = "") -> Row:
    return named_row(site.name, tensor, site.node.op_type, implementation, against, note)
