"""Our kernel through the C interface, and the roof, for `bench_kernels.py`."""

from __future__ import annotations

import sys

from bngrad.bench.case import Case
from bngrad.bench.prepared import PreparedCase
from kernel_serve import serve


def main() -> None:
    threads = int(sys.argv[1])

    def prepare(asked):
        case = Case(asked.shape, asked.axes, asked.dtype, asked.op, asked.frozen)
        prepared = PreparedCase(case, threads=threads)
        return {"bngrad": prepared.kernel, "roof": prepared.roof}

    serve(prepare)


if __name__ == "__main__":
    main()
