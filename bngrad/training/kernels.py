"""The check that ONNX Runtime has a kernel for each node of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnxruntime

from bngrad.errors import LibraryError
from bngrad.io.files import to_proto
from bngrad.passes.prepare.large_initializers import hide_initializers, is_large
from bngrad.runtime.device import execution_providers
from bngrad.runtime.missing_kernels import no_kernel
from bngrad.runtime.session import register

if TYPE_CHECKING:
    import onnx_ir as ir


def refuse_without_kernels(model: ir.Model) -> None:
    """Refuses a model that ONNX Runtime has no kernel for; passes if the library is missing.

    Nothing is optimized: that takes most of the time, and replaces kernels by others for the same types.

    Args:
        model: A model for stock ONNX Runtime; it is not changed.

    Raises:
        UnsupportedNodeError: ONNX Runtime has no CPU kernel for the types of a node.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what fails is raised
    bare = model.clone()
    hide_initializers(bare.graph, is_large)
    try:
        register(options)
        onnxruntime.InferenceSession(to_proto(bare).SerializeToString(), options, providers=execution_providers())
    except LibraryError:
        return
    except Exception as error:  # the session of the training loop reports any other error
        if (refusal := no_kernel(model, error)) is not None:
            raise refusal from error
