"""Running rewritten models: which of the three implementations of the ops a session uses.

=========== =====================================================================================================
native      The C++ library, registered by its path: the fast one, for every language.
python      onnxruntime-extensions calling back into Python: for debugging, and where there is no compiler.
function    Nothing registered: the functions that a rewritten model carries.
=========== =====================================================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import onnx
import onnxruntime
from onnx.external_data_helper import uses_external_data

from bngrad.arguments import require_choice
from bngrad.errors import InputError, LibraryError
from bngrad.io.files import as_ir, to_proto
from bngrad.runtime import native_library, versions

if TYPE_CHECKING:
    from bngrad.io.files import AnyModel

Provider = Literal["native", "python", "function"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


def get_library_path() -> str:
    """Returns the path of the custom-op library, for ``register_custom_ops_library`` in any language.

    Raises:
        LibraryError: It was not built.
    """
    return str(native_library.library_path())


def register(session_options: onnxruntime.SessionOptions, provider: Provider = "native") -> None:
    """Registers the ops of ``bngrad`` with a session that is about to be made.

    A session takes the domain once: native or python, and either of them once.

    Args:
        session_options: The options that the session will be made with.
        provider: Which implementation; ``function`` registers nothing.

    Raises:
        InputError: There is no such provider.
        LibraryError: The library is missing, or this ONNX Runtime does not take it.
        VersionError: A package is missing or too old, or two do not run together.
    """
    require_choice("provider", provider, PROVIDERS)
    versions.check()
    if provider == "native":
        _register_library(session_options, get_library_path())
    elif provider == "python":
        versions.check("onnxruntime-extensions")
        from bngrad.runtime import extensions  # noqa: PLC0415 - loads onnxruntime-extensions, which few need

        extensions.define_ops()
        _register_library(session_options, extensions.library_path())


def session(model: AnyModel, provider: Provider = "native", *, threads: int = 0) -> onnxruntime.InferenceSession:
    """Makes a session for a rewritten model, with the options that suit training graphs.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        provider: Which implementation of the ops to use.
        threads: How many threads work on one op; 0 lets ONNX Runtime choose.

    Raises:
        InputError: The argument is no model, or there is no such provider.
        LibraryError: The library is missing, this ONNX Runtime does not take it, or the provider is ``python`` and
            the model has 16-bit types, which onnxruntime-extensions does not carry.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # A training graph has many small tensors that live long; planning them into one block doubles the peak.
    options.enable_mem_pattern = False
    # Weights are inputs with defaults, so that a training loop can feed them; ORT would warn of every one.
    options.log_severity_level = 3
    register(options, provider)
    try:
        return onnxruntime.InferenceSession(_source(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if provider == "python" and "float16" in str(error):
            raise LibraryError(
                "the python provider has float and double only, for onnxruntime-extensions carries no float16 and "
                f"no bfloat16; use native or function ({' '.join(str(error).split())})"
            ) from error
        raise


def _source(model: AnyModel) -> str | bytes:
    """What ONNX Runtime reads: a path stays one, for external data is relative to it."""
    if isinstance(model, str | os.PathLike):
        if not Path(model).is_file():
            raise InputError(f"{os.fspath(model)} does not exist; expected an ONNX model file")
        return os.fspath(model)
    if not isinstance(model, onnx.ModelProto) or any(map(uses_external_data, model.graph.initializer)):
        model = to_proto(as_ir(model))
    return bytes(model.SerializeToString())


def _register_library(session_options: onnxruntime.SessionOptions, path: str) -> None:
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:
        what = " ".join(str(error).split())
        raise LibraryError(f"ONNX Runtime {onnxruntime.__version__} does not take {path}: {what}") from error
