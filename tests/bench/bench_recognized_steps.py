"""Steps of training graphs before and after their batch norms in primitives are recognized: time and peak memory.

    python tests/bench/bench_recognized_steps.py MODEL [MODEL ...]

MODEL is a training graph whose batch norms are primitives, such as `recognized_models.py` writes, and MODEL.npz
beside it has its inputs. Both graphs are lowered alike, and run on the same ONNX Runtime with the native library.
Each is a process of its own, so that its peak memory is its own; steps are taken in turns. Then both run in one
process, in turns, with ONNX Runtime's profiler: what batch norm costs is the kernel time of the nodes that the
other graph does not have. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import onnxruntime

from bench_step import FOLDER, Way
from bngrad.passes.pipeline import for_target
from bngrad.runtime.native_library import library_path
from bngrad.runtime.session import register
from bngrad.validation.inputs import feeds_of

if TYPE_CHECKING:
    from collections.abc import Collection

BEFORE, AFTER = "in primitives", "recognized"

Node = tuple[str, str]
"""The op type and the name of a node."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--profiled", type=int, default=15, help="steps with the profiler")
    options = parser.parse_args()
    for path in options.models:
        with tempfile.TemporaryDirectory() as folder:
            graphs = rewritten(path, Path(folder))
            print(f"{path.stem}, onnxruntime {onnxruntime.__version__}, {options.threads} threads", flush=True)
            steps(graphs, path.with_suffix(".npz"), options)
            kernels(graphs, path.with_suffix(".npz"), options)


def rewritten(path: Path, folder: Path) -> dict[str, Path]:
    """Files of the graph as it is and with its batch norms recognized."""
    model = ir.load(path)
    graphs = {}
    for name, recognize in ((BEFORE, False), (AFTER, True)):
        result, _ = for_target(model, target="stock", functions=False, recognize=recognize)
        graphs[name] = folder / f"recognize-{recognize}.onnx"
        ir.save(result, graphs[name])
    return graphs


def steps(graphs: dict[str, Path], arrays: Path, options: argparse.Namespace) -> None:
    """Prints seconds a step, and the peak of memory."""
    common = ["--threads", str(options.threads), "--library", str(library_path()), "--as-bngrad"]
    with tempfile.TemporaryDirectory() as folder:
        ways = []
        for name, graph in graphs.items():
            feeds = Path(folder) / f"{graph.stem}.npz"
            np.savez(feeds, **read_feeds(graph, arrays))
            command = [sys.executable, str(FOLDER / "step_worker.py"), str(graph), str(feeds), *common]
            ways.append(Way(name, command))
    for _ in range(options.steps):
        for way in ways:
            way.step()
    for way in ways:
        way.end()
    before, after = ways
    for way in ways:
        print(f"  {way.name:14} {milliseconds(way.times)} ms a step, {way.peak:.0f} MB")
    ratios = np.divide(before.times, after.times)
    print(f"  {'ratio':14} {spread(ratios)}; memory {before.peak / after.peak:.2f}")


def kernels(graphs: dict[str, Path], arrays: Path, options: argparse.Namespace) -> None:
    """Prints the kernel time of the nodes that only one of the graphs has."""
    sessions = {name: profiled_session(graph, options.threads) for name, graph in graphs.items()}
    feeds = {name: read_feeds(graph, arrays) for name, graph in graphs.items()}
    for _ in range(options.profiled + 1):
        for name, session in sessions.items():
            session.run(None, feeds[name])
    runs = {}
    for name, session in sessions.items():
        profile = Path(session.end_profiling())
        runs[name] = kernel_times(json.loads(profile.read_text()))
        profile.unlink()
    own = {name: runs[name].keys() - runs[other].keys() for name, other in ((BEFORE, AFTER), (AFTER, BEFORE))}
    for name, times in runs.items():
        types = Counter()
        for op_type, node in own[name]:
            types[op_type] += np.median(times[op_type, node][1:]) * 1e3
        most = ", ".join(f"{op_type} {seconds:.1f}" for op_type, seconds in types.most_common(8))
        print(
            f"  {name:14} {len(own[name])} nodes of its own: {total(times, own[name])} "
            f"of {total(times, times)} ms in kernels; {most}"
        )
    for quantile, name in ((0.5, "medians"), (0, "least")):
        before, after = (total_at(runs[name], own[name], quantile) for name in (BEFORE, AFTER))
        print(f"  ratio of {name}: {before / after:.2f}", flush=True)


def profiled_session(graph: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session as `bngrad.session` makes it, with the profiler."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(graph.with_suffix(""))
    register(options)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def kernel_times(events: list[dict]) -> dict[Node, list[float]]:
    """The seconds of each node in each run of a profile."""
    times = defaultdict(list)
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") == "Node" and name != event["name"]:
            times[event["args"]["op_name"], name].append(event["dur"] / 1e6)
    return times


def total_at(times: dict[Node, list[float]], nodes: Collection[Node], quantile: float) -> float:
    """A quantile of each node's seconds, summed: a sum of each run has whatever else the machine does."""
    return sum(float(np.quantile(times[node][1:], quantile)) for node in nodes)  # the first run allocates


def total(times: dict[Node, list[float]], nodes: Collection[Node]) -> str:
    """The sum of the medians, of the quartiles, and of the least, in milliseconds."""
    low, median, high, least = (total_at(times, nodes, q) * 1e3 for q in (0.25, 0.5, 0.75, 0))
    return f"{median:.1f} ({low:.1f}-{high:.1f}, least {least:.1f})"


def read_feeds(graph: Path, arrays: Path) -> dict[str, np.ndarray]:
    """Those recorded arrays that are inputs of a graph."""
    with np.load(arrays) as recorded:
        return feeds_of(ir.load(graph), dict(recorded))


def milliseconds(seconds: list[float]) -> str:
    """Median, quartiles, and the least."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]) * 1e3
    return f"{median:.1f} ({low:.1f}-{high:.1f}, least {min(seconds) * 1e3:.1f})"


def spread(ratios: np.ndarray) -> str:
    """Median and quartiles."""
    low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
