"""Every batch norm on its own: fed with the values that the original graph had there.

Comparing whole graphs with a tolerance proves little: ReLU and max-pool kinks amplify the last bit of a deep
network by 10^5. Here each node gets the oracle's own inputs, so no error can grow, the bound is that of one
node's arithmetic, and the report names the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.runtime.session import session
from bngrad.validation.report import Check, Row, absolute_difference, differences
from bngrad.validation.sites import Site, replacement
from bngrad.validation.step_bounds import bounds
from bngrad.validation.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from onnxruntime import InferenceSession

    from bngrad.runtime.session import Provider

    Array = NDArray[Any]
    Capture = Callable[[Sequence[str]], Iterator[dict[str, Array]]]
    """Hands out the original graph's values, by name, in chunks in the order asked for."""


EXACT = "float64"
"""What the exact outputs of a batch norm for its inputs are called."""


class Tolerance(NamedTuple):
    """A plain tolerance, instead of the derived bounds: |got - want| <= atol + rtol |want|."""

    rtol: float
    atol: float


def lock_step(
    rewritten: ir.Model,
    sites: Sequence[Site | Step],
    capture: Capture,
    *,
    providers: Sequence[Provider],
    against: str,
    tolerance: Tolerance | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Compares what stands in the place of each site with the original's captured outputs and with float64.

    Args:
        rewritten: The rewritten model.
        sites: The batch norms of the original, and other steps of it; those are not compared with float64.
        capture: Where the original's values come from.
        providers: The implementations to run, each on the installed ONNX Runtime.
        against: What the captured values are called; `EXACT` if their outputs are not to be compared with, for
            they were computed in float64 and from inputs that were not rounded.
        tolerance: Replaces the derived bounds.
        progress: Called with the number of sites done, and of all.

    Returns:
        The check; a row's measure is its worst element's error over that element's bound. Against another
        implementation both may be off, so that bound is twice as wide.
    """
    check = Check("lock-step", unit="of its bound", limit=1.0)
    for done, (site, values) in enumerate(_values_of(sites, capture), start=1):
        check.rows += _compare(rewritten, site, values, providers, against, tolerance)
        progress(done, len(sites))
    return check


def _values_of(sites: Sequence[Site | Step], capture: Capture) -> Iterator[tuple[Site | Step, dict[str, Array]]]:
    """Yields each site once its values are there; a value is kept until its last site has had it."""
    wanted = [site.values for site in sites]
    last_use = {name: index for index, names in enumerate(wanted) for name in names}
    values: dict[str, Array] = {}
    index = 0
    for chunk in capture(list(dict.fromkeys(name for names in wanted for name in names))):
        values.update(chunk)
        while index < len(sites) and all(name in values for name in wanted[index]):
            yield sites[index], values
            for name in wanted[index]:
                if last_use[name] == index:
                    values.pop(name, None)
            index += 1
    assert index == len(sites), "a capture hands out every value that it was asked for"  # noqa: S101


def _compare(
    rewritten: ir.Model,
    site: Site | Step,
    values: Mapping[str, Array],
    providers: Sequence[Provider],
    against: str,
    tolerance: Tolerance | None,
) -> list[Row]:
    """The rows of one site: each output, by each provider, against the captured value and the exact one."""
    names = list(site.outputs.values())
    if isinstance(site, Step) and not site.own_nodes:
        # Standard ONNX is the same whatever is registered.
        providers = ("function",)
    try:
        model = ir.to_proto(replacement(rewritten, site, values))
    except ValueError as error:
        return [_failed(site, names[0], provider, against, _one_line(error)) for provider in providers]
    rows = []
    for provider in providers:
        try:
            runner = session(model, provider, threads=0)
            # Weights are inputs with defaults; the bounds are made by feeding other values.
            inputs = (*runner.get_inputs(), *runner.get_overridable_initializers())
            feeds = {i.name: values[i.name] for i in inputs}

            def run(given: Mapping[str, Array], runner: InferenceSession = runner) -> dict[str, Array]:
                return dict(zip(names, runner.run(names, given), strict=True))

            results = run(feeds)
            targets = list(_targets(site, run, feeds, values, against))
        except Exception as error:  # noqa: BLE001 - whatever stops a node is that node's finding
            rows.append(_failed(site, names[0], provider, against, _one_line(error)))
            continue
        for name, other, want, bound in targets:
            allowed = bound if tolerance is None else tolerance.atol + tolerance.rtol * np.abs(want)
            rows.append(_row(site, name, provider, other, results[name], want, allowed))
    return rows


def _targets(
    site: Site | Step,
    run: Callable[[Mapping[str, Array]], dict[str, Array]],
    feeds: Mapping[str, Array],
    values: Mapping[str, Array],
    against: str,
) -> Iterator[tuple[str, str, Array, Array]]:
    """Yields what each output is compared with: its name, whose value it is, the value, and the bound."""
    if isinstance(site, Step):
        for name, bound in bounds(site, run, feeds, values).items():
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


def _failed(site: Site | Step, tensor: str, provider: str, against: str, note: str) -> Row:
    """The row of a comparison that cannot be made."""
    op_type, inf = site.node.op_type, float(np.inf)
    return Row(site.name, tensor, op_type, provider, against, inf, inf, inf, passed=False, note=note)


def _row(
    site: Site | Step, tensor: str, provider: str, against: str, got: Array, want: Array, allowed: Array
) -> Row:
    if got.shape != want.shape:
        note = f"shape {list(got.shape)}; expected {list(want.shape)}"
        return _failed(site, tensor, provider, against, note)
    max_abs, relative = differences(got, want)
    # Below the smallest normal number a result may be flushed to zero; those of float16 are only rounded.
    half = got.dtype == np.float16
    floor = float(np.finfo(np.float16).smallest_subnormal if half else np.finfo(np.float32).tiny)
    measure = float(np.max(absolute_difference(got, want) / (np.nan_to_num(allowed) + floor), initial=0.0))
    return Row(
        site.name, tensor, site.node.op_type, provider, against, max_abs, relative, measure, passed=measure <= 1.0
    )
