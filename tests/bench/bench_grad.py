"""BatchNormalizationGrad of this library beside that of ONNX Runtime's training build, in one process.

    python tests/bench/bench_grad.py [SHAPE ...]

SHAPE is N,C,H,W (default: ResNet-50's); with --layout NHWC or --frozen ours alone runs, for the other op has only
NCHW and training. The models are made here; the oracle's environment, which holds the training build 1.19.2, runs
both in bench_worker.py, so that whatever else the machine does hits both alike. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from bngrad.native import library_path
from bngrad.oracle import ensure

RESNET50 = (
    "32,64,112,112",
    "32,256,56,56",
    "32,512,28,28",
    "32,1024,14,14",
    "32,2048,7,7",
    "8,64,56,56",
    "2,64,56,56",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", default=RESNET50)
    parser.add_argument("--layout", choices=["NCHW", "NHWC"], default="NCHW")
    parser.add_argument("--frozen", action="store_true", help="training_mode 0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each shape")
    options = parser.parse_args()
    domains = ["bngrad"]
    if options.layout == "NCHW" and not options.frozen:
        domains.append("com.microsoft")
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for index, text in enumerate(options.shapes):
            shape = [int(extent) for extent in text.split(",")]
            if options.layout == "NHWC":
                shape = [shape[0], *shape[2:], shape[1]]
            paths = []
            for domain in domains:
                paths.append(str(Path(folder) / f"{index}_{domain}.onnx"))
                Path(paths[-1]).write_bytes(_model(domain, shape, options).SerializeToString())
            rows.append({"shape": text, "models": paths})
        mode = "frozen" if options.frozen else "training"
        job = {
            "title": f"{options.threads} threads, {options.layout}, {mode}, float",
            "library": str(library_path()),
            "threads": options.threads,
            "seconds": options.seconds,
            "rows": rows,
        }
        worker = Path(__file__).with_name("bench_worker.py")
        subprocess.run([ensure().python, worker], input=json.dumps(job), text=True, check=True)


def _model(domain: str, shape: list[int], options: argparse.Namespace) -> ModelProto:
    channel_axis = 1 if options.layout == "NCHW" else 3
    channels = [shape[channel_axis]]
    inputs = {"dY": shape, "X": shape, "scale": channels, "mean": channels, "inv_std": channels}
    outputs = {"dX": shape, "dscale": channels, "dbias": channels}
    names, initializers, attributes = list(inputs), [], {"epsilon": 1e-5}
    if domain == "bngrad":
        axes = [axis for axis in range(4) if axis != channel_axis]
        initializers.append(helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes))
        names.append("axes")
        attributes = {"training_mode": 0 if options.frozen else 1}
    node = helper.make_node("BatchNormalizationGrad", names, list(outputs), domain=domain, **attributes)
    values = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, extents) for name, extents in group.items()]
        for group in (inputs, outputs)
    )
    graph = helper.make_graph([node], "bench", *values, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    main()
