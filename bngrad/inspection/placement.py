"""The nodes that a session on a GPU leaves to the CPU, because ONNX Runtime has no kernel for them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from bngrad.errors import BngradError, InputError, ModelError, VersionError
from bngrad.runtime.device import CPU, Device

if TYPE_CHECKING:
    from pathlib import Path

OLDEST = "1.24"
"""The first release whose sessions record where their nodes run."""

_RECORD = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class PlacedNode:
    """A node of the graph that a session runs: ONNX Runtime has inlined functions and folded constants."""

    name: str
    """Its name; empty for some nodes that ONNX Runtime made."""
    op: str
    """Its op, with the domain if that is not ai.onnx."""


def nodes_on_cpu(path: Path, device: str) -> list[PlacedNode]:
    """Returns the nodes of a model that a session on a device would run on the CPU.

    Args:
        path: The model.
        device: The name of the device, ``cuda`` or ``cuda:1``.

    Raises:
        InputError: The device is the CPU, or unknown.
        DeviceError: The device, its driver or its libraries are missing or too old.
        VersionError: ONNX Runtime does not record where nodes run.
        LibraryError: The library is missing, or this ONNX Runtime cannot load it.
        ModelError: ONNX Runtime refuses the model.
    """
    import onnxruntime  # noqa: PLC0415 - heavy, and needed only for a device

    from bngrad.runtime.device_session import open_session, require_available  # noqa: PLC0415 - as it
    from bngrad.runtime.session import register  # noqa: PLC0415 - as it

    if Device.of(device).kind == CPU:
        raise InputError(f"device is {device!r}, which runs all nodes; expected another one, such as 'cuda'")
    require_available(device)
    if Version(onnxruntime.__version__) < Version(OLDEST):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} does not record where nodes run; expected {OLDEST} or newer"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    options.add_session_config_entry(_RECORD, "1")
    register(options, device=device)
    try:
        parts = open_session(str(path), options, device).get_provider_graph_assignment_info()
    except BngradError:
        raise
    except Exception as error:
        raise ModelError(f"ONNX Runtime refuses the model: {' '.join(str(error).split())}") from error
    provider = Device.of(CPU).provider
    nodes = [node for part in parts if part.ep_name == provider for node in part.get_nodes()]
    return [PlacedNode(node.name, ".".join(filter(None, (node.domain, node.op_type)))) for node in nodes]
