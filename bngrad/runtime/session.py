"""Sessions for rewritten models, with one of three implementations of the ops.

=========== =====================================================================================================
native      The C++ custom-op library. The fastest implementation; works from any language.
python      onnxruntime-extensions, which calls back into Python. For debugging, or without a C++ compiler.
function    The functions embedded in the model. Nothing is registered.
=========== =====================================================================================================
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import onnx
import onnxruntime
from onnx.external_data_helper import uses_external_data
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

from bngrad.arguments import renamed_keyword, require_choice
from bngrad.errors import BngradError, InputError, LibraryError, ModelError
from bngrad.io.files import as_ir, to_proto
from bngrad.options import Implementation
from bngrad.runtime import native_library, versions
from bngrad.runtime.device import CPU, CUDA, WEBGPU, Device, DeviceOptions, execution_providers
from bngrad.runtime.device_session import open_session, require_available
from bngrad.runtime.missing_kernels import no_kernel
from bngrad.runtime.webgpu_faults import require_right

if TYPE_CHECKING:
    from bngrad.io.files import AnyModel

IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)

_NO_COLLECTIVE = re.compile(r"(AllGather|AllReduce)\S* is not a registered")
"""The message of ONNX Runtime about a collective without the library."""
_NO_FUNCTION = re.compile(r"bngrad:(\w+)\S* is not a registered")
"""The message of ONNX Runtime about an op with neither the library nor its function."""


def get_library_path() -> str:
    """Returns the path of the custom-op library, for ``register_custom_ops_library`` in any language.

    Raises:
        LibraryError: The library is not installed.
    """
    return str(native_library.library_path())


@renamed_keyword("provider", "implementation")
def register(
    session_options: onnxruntime.SessionOptions, implementation: Implementation = "native", *, device: str = CPU
) -> None:
    """Registers the ops of ``bngrad`` with the options of a session.

    Call it once per `SessionOptions`: ONNX Runtime rejects a second registration of the same domain.

    Args:
        session_options: The options to create the session with.
        implementation: The implementation to register: ``native`` or ``python``. ``function`` registers nothing.
        device: The device of the session. For ``cuda`` also ops that have a kernel for a GPU only. For ``webgpu``
            ``native`` registers nothing: the library has no kernels for it, and the functions run.

    Raises:
        InputError: ``implementation`` is unknown, or ``device`` is.
        LibraryError: The library is missing, or this ONNX Runtime cannot load it.
        VersionError: A required package is missing, too old, or incompatible with another one.
    """
    require_choice("implementation", implementation, IMPLEMENTATIONS)
    versions.check()
    if implementation == "native" and Device.of(device).kind != WEBGPU:
        # The library cannot see the providers of a session. On the CPU such an op would hide its function.
        if Device.of(device).kind == CUDA:
            session_options.add_session_config_entry("bngrad.device", CUDA)
        register_library(session_options, get_library_path())
    elif implementation == "python":
        versions.check("onnxruntime-extensions")
        from bngrad.runtime import extensions  # noqa: PLC0415 - imports onnxruntime-extensions, rarely needed

        extensions.define_ops()
        register_library(session_options, extensions.library_path())


@renamed_keyword("provider", "implementation")
def session(
    model: AnyModel,
    implementation: Implementation = "native",
    *,
    device: str = CPU,
    threads: int = 0,
    tf32: bool = False,
    cuda_graph: bool = False,
) -> onnxruntime.InferenceSession:
    """Creates a session for a rewritten model, with session options suitable for training graphs.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        implementation: The implementation of the ops: ``native``, ``python`` or ``function``.
        device: The device to run on: ``cpu``, ``cuda``, ``cuda:1`` for the second GPU, or ``webgpu``. Only single
            nodes that ONNX Runtime has no kernel for there run on the CPU then. On ``webgpu``, for which the
            library has no kernels, ``native`` is ``function``.
        threads: Number of intra-op threads; 0 lets ONNX Runtime choose.
        tf32: Whether a CUDA device rounds the factors of convolutions and matrix products to TF32.
        cuda_graph: Whether a CUDA device captures a run as a graph and replays it, for inputs and outputs that are
            bound to fixed memory of the device.

    Raises:
        InputError: ``model`` is not a model, ``implementation`` or ``device`` is unknown, or the device has no
            such option.
        DeviceError: The device, its driver or its libraries are missing or too old; or it has no memory left.
        LibraryError: The library is missing, cannot be loaded by this ONNX Runtime, or was built without kernels
            for the device; or the implementation is ``python`` and the model has 16-bit types, which
            onnxruntime-extensions does not support; or it is ``function`` and the model has collectives, which
            have no functions.
        ModelError: The model is invalid for ONNX Runtime, or lacks the functions that it needs on WebGPU.
        UnsupportedNodeError: ONNX Runtime has no CPU kernel for the types of a node, or computes it wrong on the
            device.
    """
    device_options = DeviceOptions(tf32, cuda_graph)
    execution_providers(device, device_options)  # refuses a wrong device before the library is loaded
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # A training graph keeps many small tensors alive; one preplanned memory block increases the peak.
    options.enable_mem_pattern = False
    if Device.of(device).kind == CPU:
        # ORT keeps a buffer from a forward value until a gradient of the same shape takes it over.
        options.enable_mem_reuse = False
    # ORT would warn about each weight, which is an input with a default; and what fails is raised.
    options.log_severity_level = 4
    register(options, implementation, device=device)
    _require_kernels(model, device, implementation)
    try:
        return open_session(_source(model), options, device, device_options)
    except BngradError:
        raise
    except Exception as error:
        if implementation == "python" and "float16" in str(error):
            raise LibraryError(
                "the python implementation supports only float and double, because onnxruntime-extensions has no "
                f"float16 or bfloat16; use native or function ({' '.join(str(error).split())})"
            ) from error
        if _NO_COLLECTIVE.search(str(error)) and Device.of(device).kind == WEBGPU:
            raise LibraryError(
                "the model was built with --sync: its AllGather and AllReduce, which exchange data with other "
                f"processes, do not run on {device!r}; use another device, or build the model without --sync"
            ) from error
        if implementation == "function" and _NO_COLLECTIVE.search(str(error)):
            raise LibraryError(
                "the model was built with --sync: its AllGather and AllReduce, which exchange data with other "
                "processes, need the library; use the native implementation, or build the model without --sync"
            ) from error
        if (match := _NO_FUNCTION.search(str(error))) and Device.of(device).kind == WEBGPU:
            raise ModelError(
                f"the model has no function of {match[1]}, and the library no kernel for device {device!r}; build "
                "it with functions"
            ) from error
        if (refusal := no_kernel(as_ir(model), error)) is not None:
            raise refusal from error
        if isinstance(error, InvalidGraph):
            raise ModelError(f"ONNX Runtime refuses the model: {' '.join(str(error).split())}") from error
        raise


def _require_kernels(model: AnyModel, device: str, implementation: Implementation) -> None:
    """Refuses a CUDA device if the native library has no kernels for it, and what WebGPU computes wrong.

    Functions are many times slower than the kernels.
    """
    if Device.of(device).kind == WEBGPU:
        require_right(as_ir(model))
    if implementation != "native" or Device.of(device).kind != CUDA or native_library.has_cuda():
        return
    require_available(device)  # what else is missing comes first
    raise LibraryError(
        f"the native library has no kernels for device {device!r}, because it was built without zig: install a "
        "wheel of bngrad, or run `pip install ziglang==0.17.1` and build it again without isolation; "
        "implementation='function' runs without the kernels, and slowly"
    )


def _source(model: AnyModel) -> str | bytes:
    """Returns a path or a serialized model; a path is kept, because external data is relative to it."""
    if isinstance(model, str | os.PathLike):
        if not Path(model).is_file():
            raise InputError(f"{os.fspath(model)} does not exist; expected an ONNX model file")
        return os.fspath(model)
    if not isinstance(model, onnx.ModelProto) or any(map(uses_external_data, model.graph.initializer)):
        model = to_proto(as_ir(model))
    return bytes(model.SerializeToString())


def register_library(session_options: onnxruntime.SessionOptions, path: str) -> None:
    """Registers the ops of a custom-op library.

    Raises:
        LibraryError: ONNX Runtime cannot load it.
    """
    try:
        # The system's loader does not search the current folder for a name without a folder.
        session_options.register_custom_ops_library(str(Path(path).absolute()))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LibraryError(f"ONNX Runtime {onnxruntime.__version__} cannot register {path}: {reason}") from error
