"""A benchmark case as sessions of ONNX Runtime on a device: the op many times, and additions for the bandwidth."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from bngrad.bench.case import OPS
from bngrad.bench.prepared import ATTRIBUTES, random_array
from bngrad.errors import UnsupportedNodeError
from bngrad.opset.functions import DOMAIN, VERSION
from bngrad.opset.schemas import signature
from bngrad.runtime.device import CPU, WEBGPU, Device, DeviceOptions
from bngrad.runtime.device_session import open_session
from bngrad.runtime.ort_values import to_ort_value
from bngrad.runtime.session import register

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bngrad.bench.case import Case

    Array = NDArray[Any]

_OPSET, _IR_VERSION = 17, 8


class SessionCase:
    """A case that is ready to be timed on a device, with the calls of `PreparedCase`.

    A call runs the op `runs` times, as a launch of a session takes longer than a small op. All inputs and outputs
    are in the device's memory.

    Args:
        case: The case to prepare.
        device: The name of the device.

    Raises:
        UnsupportedNodeError: The library has no kernel of the op for the device.
        DeviceError: The device does not exist, or is out of memory.
        LibraryError: The library is missing or cannot be loaded.
    """

    runs = 10
    """The number of times that a call runs the op."""
    kernel: Callable[[], object]
    addition: Callable[[], object]

    def __init__(self, case: Case, device: str) -> None:
        if Device.of(device).kind == WEBGPU:
            raise UnsupportedNodeError(f"the library has no kernels for {device!r}; expected 'cpu' or 'cuda'")
        op = OPS[case.op]
        inputs, outputs, attributes = signature(op)
        inputs.remove("axes")
        generator = np.random.default_rng(0)
        arrays = {name: random_array(case, name, generator) for name in inputs}
        values = ATTRIBUTES | {"training_mode": int(not case.frozen)}
        options: dict[str, Any] = {name: getattr(values[name], "value", values[name]) for name in attributes}
        nodes = [
            helper.make_node(
                op, [*inputs, "axes"], [f"{name}_{run}" for name in outputs], domain=DOMAIN, **options
            )
            for run in range(self.runs)
        ]
        axes = onnx.numpy_helper.from_array(np.array(case.axes, np.int64), "axes")
        self.kernel = _prepare(case, device, nodes, arrays, [axes])
        floats = np.resize(generator.standard_normal(1 << 16).astype(np.float32), -(-case.data_bytes // 4))
        sums = [helper.make_node("Add", ["a", "b"], [f"c_{run}"]) for run in range(self.runs)]
        self.addition = _prepare(case, device, sums, {"a": floats, "b": floats.copy()}, [])


def _prepare(
    case: Case,
    device: str,
    nodes: list[onnx.NodeProto],
    arrays: Mapping[str, Array],
    initializers: list[onnx.TensorProto],
) -> Callable[[], object]:
    """Returns a call that runs nodes on arrays in the device's memory, after the first one."""
    values = {name: to_ort_value(array) for name, array in arrays.items()}
    infos = [
        helper.make_tensor_value_info(name, value.element_type(), value.shape()) for name, value in values.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "bench", infos, results, initializers)
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    target = Device.of(device)
    options = onnxruntime.SessionOptions()
    # Equal nodes would become one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    register(options, device=device)
    # A kernel of the CPU would be timed instead.
    device_options = DeviceOptions(cpu_nodes=False) if target.kind != CPU else None
    try:
        session = open_session(model.SerializeToString(), options, device, device_options)
    except Exception as error:
        if "fallback to CPU EP has been explicitly disabled" in str(error):
            raise UnsupportedNodeError(
                f"the library has no kernel of {nodes[0].op_type} for {case.dtype} on {target}"
            ) from error
        raise
    binding = session.io_binding()
    with target.errors():
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)  # copies it to the device
        for name in nodes[-1].output:
            binding.bind_output(name, target.kind, target.index)
        call = partial(session.run_with_iobinding, binding)
        call()
    return call
