"""Runs where PyTorch is: answers what its operators answer, for test_import_aten_torch.py.

Usage: aten_on_torch.py JOBS ANSWERS; both are pickles of plain Python and NumPy.
"""

import pickle
import sys
from pathlib import Path

import torch

DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def argument(value):
    """A tensor comes as (values in float64, type), for NumPy has no bfloat16."""
    return torch.from_numpy(value[0]).to(DTYPES[value[1]]) if isinstance(value, tuple) else value


def answer(op, arguments):
    results = getattr(torch.ops.aten, op)(*map(argument, arguments))
    return [None if r is None else (r.double().numpy(), NAMES[r.dtype]) for r in results]


def schema(op):
    return str(getattr(torch.ops.aten, op).default._schema)


class Backward(torch.nn.Module):
    """The operator itself, kept as a node, as its users write it."""

    def forward(self, grad_out, x, weight, running_mean, running_var, save_mean, save_invstd):
        return torch.onnx.ops.symbolic_multi_out(
            "aten::native_batch_norm_backward",
            (grad_out, x, weight, running_mean, running_var, save_mean, save_invstd),
            {"train": True, "eps": 1e-3, "output_mask": [1, 1, 1]},
            dtypes=(x.dtype, weight.dtype, weight.dtype),
            shapes=(x.shape, weight.shape, weight.shape),
        )


def exported(arguments):
    program = torch.onnx.export(Backward(), tuple(map(argument, arguments)), dynamo=True, verbose=False)
    return program.model_proto.SerializeToString()


jobs = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - the test wrote it
answers = {
    "version": str(torch.__version__),
    "schemas": {op: schema(op) for op in jobs["schemas"]},
    "calls": [answer(*call) for call in jobs["calls"]],
    "exported": exported(jobs["export"]),
}
Path(sys.argv[2]).write_bytes(pickle.dumps(answers))
