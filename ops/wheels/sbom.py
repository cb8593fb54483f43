"""The software bill of materials of a wheel: a CycloneDX document in the folder that PEP 770 names.

It lists the native library, by its hash, and what is linked into it. The Python packages that the wheel needs are
in the wheel's metadata.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ops.wheels.components import components_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ops.wheels.targets import Target

NAME = "sboms/bngrad.cdx.json"
"""The file, in the folder .dist-info of a wheel."""

_LICENSE = "Apache-2.0"


def bill_of_materials(target: Target, version: str, library: bytes, ziglang: Path, version_of_zig: str) -> bytes:
    """Returns the document.

    Args:
        target: The platform.
        version: The version of bngrad.
        library: The native library.
        ziglang: The folder of the package ziglang.
        version_of_zig: The version of that package.
    """
    linked = [
        {
            "type": "library",
            "bom-ref": component.name,
            "name": component.name,
            **({"version": number} if (number := component.version(ziglang, version_of_zig)) else {}),
            "scope": "required",
            "licenses": [{"expression": component.license}],
        }
        for component in components_of(target)
    ]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {
                "components": [
                    {
                        "type": "application",
                        "name": "ziglang",
                        "version": version_of_zig,
                        "purl": f"pkg:pypi/ziglang@{version_of_zig}",
                    }
                ]
            },
            "component": _package(target, version, library),
        },
        "components": linked,
        "dependencies": [
            {"ref": "bngrad", "dependsOn": [component["bom-ref"] for component in linked]},
            *({"ref": component["bom-ref"], "dependsOn": []} for component in linked),
        ],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def sbom_problems(content: bytes, target: Target, version: str, library: bytes) -> Iterator[str]:
    """Yields what is wrong with the document of a wheel."""
    try:
        document = json.loads(content)
        package, linked = document["metadata"]["component"], document["components"]
        components = {component["name"]: component for component in linked}
        licenses = {name: component["licenses"][0]["expression"] for name, component in components.items()}
        dependencies = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        yield f"is no document of CycloneDX: {type(error).__name__}: {error}"
        return
    if (document.get("bomFormat"), document.get("specVersion")) != ("CycloneDX", "1.6"):
        yield f"has the format {document.get('bomFormat')} {document.get('specVersion')}, expected CycloneDX 1.6"
    if package != _package(target, version, library):
        yield f"describes another package or library than bngrad {version} in this wheel"
    parts = components_of(target)
    expected = {component.name: component.license for component in parts}
    if licenses != expected:
        names = sorted(name for name in licenses.keys() | expected if licenses.get(name) != expected.get(name))
        yield f"lists other components or licenses than what is linked: {', '.join(names)}"
    for part in parts:
        if part.source is not None and not components.get(part.name, {}).get("version"):
            yield f"has no version of {part.name}"
    if dependencies != {"bngrad": [*components]} | {name: [] for name in components}:
        yield "has other dependencies than bngrad on each component"


def _package(target: Target, version: str, library: bytes) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": "bngrad",
        "name": "bngrad",
        "version": version,
        "purl": f"pkg:pypi/bngrad@{version}",
        "licenses": [{"expression": _LICENSE}],
        "components": [
            {
                "type": "file",
                "name": f"bngrad/lib/{target.library}",
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(library).hexdigest()}],
            }
        ],
    }
