"""PyTorch's kernel for `bench_kernels.py`. It allocates its outputs; `kernel_ways.py` starts it in two ways."""

from __future__ import annotations

import sys

import torch

from kernel_serve import RefusedError, serve

DTYPES = {"float": torch.float32, "double": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    name = sys.argv[2]
    serve(lambda asked: {name: prepare(asked)})


def prepare(asked):
    if asked.op != "grad":
        raise RefusedError(f"it has no {asked.op} in one op")
    rank = len(asked.extents)
    if asked.layout == "NHWC" and rank > 2 and rank not in FORMATS:
        raise RefusedError(f"it has no channels-last format of rank {rank}")
    dtype = DTYPES[asked.dtype]
    data = [torch.randn(asked.extents).to(dtype) for _ in range(2)]
    if asked.layout == "NHWC" and rank > 2:
        data = [tensor.contiguous(memory_format=FORMATS[rank]) for tensor in data]
    parameters = [torch.rand(asked.channels) + 0.5 for _ in range(5)]
    if dtype == torch.float64:
        parameters = [tensor.double() for tensor in parameters]
    scale, running_mean, running_var, mean, inv_std = parameters
    op = torch.ops.aten.native_batch_norm_backward
    statistics = (running_mean, running_var, mean, inv_std, not asked.frozen, 1e-5, (True, True, True))
    return lambda: op(*data, scale, *statistics)


if __name__ == "__main__":
    main()
