"""The schema of checkpoint files: ONNX Runtime's ``ort_training_checkpoint.fbs`` and, for tensors, ``ort.fbs``."""

from __future__ import annotations

from bngrad.ort_training.flatbuffer import Schema

_TENSOR = Schema(
    {
        "name": "string",
        "doc_string": "string",
        "dims": "int64s",
        "data_type": "int32",
        "raw_data": "bytes",
        "string_data": "bytes",  # never read: no parameter is a string
        "external_data_offset": "int64",
    }
)
_MODULE_STATE = Schema(
    {
        "requires_grad_params": [_TENSOR],
        "frozen_params": [_TENSOR],
        "is_nominal_state": "bool",
        "has_external_data": "bool",
    }
)
_PARAMETER_STATE = Schema({"param_name": "string", "momentums": [_TENSOR]})
_GROUP = Schema(
    {
        "group_name": "string",
        "step": "int64",
        "initial_learning_rate": "float",
        "optimizer_states": [_PARAMETER_STATE],
    }
)
_BAG = Schema(
    {
        "ints": [Schema({"name": "string", "value": "int64"})],
        "floats": [Schema({"name": "string", "value": "float"})],
        "strings": [Schema({"name": "string", "value": "string"})],
    }
)
CHECKPOINT = Schema(
    {"version": "int32", "module_state": _MODULE_STATE, "optimizer_groups": [_GROUP], "property_bag": _BAG}
)
