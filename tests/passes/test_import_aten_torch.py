"""The import of ATen's nodes against PyTorch itself, in an environment that the test makes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.passes.imports.aten.gradients import ImportAtenPass
from bngrad.passes.imports.aten.nodes import SCHEMAS
from dialects import rewritten, run, worst_error
from ort_values import DTYPES, TOLERANCES
from test_import_aten import EPS, MODES, NATIVE, OPTIONAL_WEIGHT, ORDER, OUTPUTS, TYPES, feeds, node, tensors

pytestmark = pytest.mark.long

REQUIREMENTS = ("torch==2.13.0", "onnxscript==0.7.2", "numpy")
SHAPES = [(6, 3), (4, 3, 7), (4, 3, 5, 6), (2, 3, 3, 2, 4)]
MASKS = [(True, True, True), (True, False, False), (False, True, True)]
ON_CPU = [(op, train) for op, train in MODES if not op.startswith(("cudnn", "miopen"))]


def cases():
    """Every op that PyTorch has on the CPU: both modes, every type, shape and mask; with and without weight."""
    rng = np.random.default_rng(11)
    for op, train in ON_CPU:
        for data, parameter in TYPES:
            for shape in SHAPES:
                unused = ("running_mean", "running_var") if train else ("save_mean", "save_invstd")
                for mask in MASKS:
                    yield op, train, mask, tensors(rng, shape, data, parameter)
                yield op, train, MASKS[0], tensors(rng, shape, data, parameter, without=unused)
                if op in OPTIONAL_WEIGHT:
                    yield op, train, MASKS[0], tensors(rng, shape, data, parameter, without=("weight",))


CASES = list(cases())
EXPORT = tensors(np.random.default_rng(12), (4, 3, 5))


def sent(array):
    if array is None:
        return None
    (name,) = (name for name, dtype in DTYPES.items() if dtype == array.dtype)
    return array.astype(np.float64), name


def call(op, train, mask, t):
    values = {"impl_index": 0, "train": train, "update": train, "eps": EPS, "output_mask": list(mask)}
    values |= {"reserve": (np.empty(0), "float"), "reservedSpace": (np.empty(0), "float")}
    values |= {name: sent(array) for name, array in feeds(t).items() if name not in values and name != "epsilon"}
    return op, [values[name] for name in ORDER[op].split()]


@pytest.fixture(scope="module")
def torch_answers(tmp_path_factory):
    """PyTorch's results of all cases; it is installed for them, or the tests are skipped."""
    path = tmp_path_factory.mktemp("torch")
    venv.create(path / "venv", with_pip=True)
    python = path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", *REQUIREMENTS], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        reason = installed.stderr.strip().splitlines()[-1:]
        pytest.skip(f"{' '.join(REQUIREMENTS)} cannot be installed: {''.join(reason)}")
    jobs = {"schemas": list(SCHEMAS), "calls": [call(*case) for case in CASES]}
    order = ORDER[NATIVE].split()[:7]
    jobs["export"] = [sent(EXPORT[name]) for name in order]
    (path / "jobs").write_bytes(pickle.dumps(jobs))
    worker = Path(__file__).with_name("aten_on_torch.py")
    subprocess.run([python, worker, path / "jobs", path / "answers"], check=True)
    return pickle.loads((path / "answers").read_bytes())  # noqa: S301 - our worker wrote it


def test_the_schemas_are_those_of_pytorch(torch_answers):
    want = {op: f"aten::{op}({schema}) -> (Tensor, Tensor, Tensor)" for op, schema in SCHEMAS.items()}
    assert torch_answers["schemas"] == want


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize(("op", "train"), ON_CPU)
def test_the_numbers_are_those_of_pytorch(op, train, types, torch_answers):
    compared = 0
    for case, answers in zip(CASES, torch_answers["calls"], strict=True):
        of_op, of_train, mask, t = case
        data, parameter = types
        got_types = (t["input"].dtype, t["running_var" if t["running_var"] is not None else "save_mean"].dtype)
        if (of_op, of_train, *got_types) != (op, train, DTYPES[data], DTYPES[parameter]):
            continue
        outputs = [name if kept else "" for name, kept in zip(OUTPUTS, mask, strict=True)]
        got = run(rewritten(node(op, t, train=train, mask=mask, outputs=outputs), ImportAtenPass()), feeds(t))
        for name, want in zip(OUTPUTS, answers, strict=True):
            assert (want is None) == (name not in got), name
            if want is not None:
                assert got[name].dtype == DTYPES[want[1]], name
                # Both sides round.
                assert worst_error(got[name], want[0]) <= 2 * TOLERANCES[data], (name, t["input"].shape)
                compared += 1
    assert compared >= len(SHAPES) * 7


def test_what_the_exporter_writes_is_imported(torch_answers):
    before = ir.from_proto(onnx.load_from_string(torch_answers["exported"]))
    (exported,) = (n for n in before.graph if n.op_type == NATIVE)
    assert exported.domain == "aten"
    names = [value.name for value in before.graph.inputs]
    inputs = dict(zip(names, (EXPORT[name] for name in ORDER[NATIVE].split()[:7]), strict=True))
    got = run(rewritten(before, ImportAtenPass()), inputs)
    want = run(rewritten(node(NATIVE, EXPORT), ImportAtenPass()), feeds(EXPORT))
    for value, name in zip(got.values(), OUTPUTS, strict=True):
        np.testing.assert_array_equal(value, want[name], err_msg=name)
