"""A wheel with a library of a few bytes, which passes the checks, and copies of it with one fault each."""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from ops.wheels.components import COMPONENTS
from ops.wheels.sbom import NAME, bill_of_materials

if TYPE_CHECKING:
    from ops.wheels.targets import Target

ROOT = Path(__file__).parents[2]
HEADER = (ROOT / "ops" / "bngrad.h").read_text(encoding="utf-8")
INFO = "bngrad-0.1.0.dist-info"

VERSIONS = {
    "lib/libcxx/include/__config": "#  define _LIBCPP_VERSION 220108\n",
    "lib/libc/include/any-windows-any/_mingw_mac.h": "#define __MINGW64_VERSION_MAJOR 15\n"
    "#define __MINGW64_VERSION_MINOR 0\n\n#define __MINGW64_VERSION_BUGFIX 2\n",
    "lib/libc/musl/src/internal/version.h": '#define VERSION "1.2.5"\n',
}
"""The files of the package ziglang that have versions."""
assert {component.source[0] for component in COMPONENTS if component.source} == {"", *VERSIONS}


def source(target: Target, extra: str = "") -> str:
    """C source that exports what a library has to, and has the names of its instruction sets."""
    names = ["RegisterCustomOps", *re.findall(r"^BNGRAD_EXPORT[^(]*?(\w+)\(", HEADER, re.MULTILINE)]
    isas = "\\0".join(["", *target.kernels, ""])
    mark = "__declspec(dllexport)" if target.file_format == "PE" else '__attribute__((visibility("default")))'
    functions = "".join(f"{mark} const char* {name}(void) {{ return isas; }}\n" for name in names)
    return f'static const char isas[] = "{isas}";\n{functions}{extra}'.replace("MARK", mark)


def files(target: Target, library: bytes) -> dict[str, bytes]:
    """The files of the wheel, except RECORD."""
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in target.tag.split("."))
    metadata = (
        "Metadata-Version: 2.4\nName: bngrad\nVersion: 0.1.0\nLicense-Expression: Apache-2.0\n"
        "License-File: LICENSE\nLicense-File: LICENSE-THIRD-PARTY.txt\n"
    )
    return {
        "bngrad/__init__.py": b"",
        "bngrad/include/bngrad.h": HEADER.encode(),
        f"bngrad/lib/{target.library}": library,
        f"{INFO}/METADATA": metadata.encode(),
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{tags}".encode(),
        f"{INFO}/licenses/LICENSE": b"Apache License",
        f"{INFO}/licenses/LICENSE-THIRD-PARTY.txt": b"The LLVM Project",
        f"{INFO}/{NAME}": bill(target, library),
    }


def bill(target: Target, library: bytes) -> bytes:
    """The bill of materials of the wheel, with the versions of a package ziglang of a few lines."""
    with tempfile.TemporaryDirectory() as folder:
        for file, text in VERSIONS.items():
            path = Path(folder, file)
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
        return bill_of_materials(target, "0.1.0", library, Path(folder), "0.17.1")


def write(
    folder: Path, target: Target, contents: dict[str, bytes], *, name="bngrad-0.1.0-py3-none-{}.whl"
) -> Path:
    """Writes a wheel; entries of RECORD are made for what has none."""
    path = folder / name.format(target.tag)
    record = f"{INFO}/RECORD"
    lines = [f"{file},sha256={_hash(content)},{len(content)}" for file, content in contents.items()]
    contents = {record: "\n".join([*lines, f"{record},,"]).encode()} | contents
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in contents.items():
            archive.writestr(file, content)
    return path


def _hash(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
