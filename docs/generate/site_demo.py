"""The page of docs/examples/browser as part of the site, which npm's packages make possible.

The page keeps its place, and so do the files that it loads. Where npm has not installed its packages, links to it
go to the code host, as those to the other examples do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_RUNTIME = "browser/node_modules/onnxruntime-web"
_LOADED = (
    "digits.mjs",
    "step/*.mjs",
    "browser/*.*",
    f"{_RUNTIME}/dist/ort.w*.bundle.min.mjs",
    f"{_RUNTIME}/dist/ort-wasm-simd-threaded.wasm",
    f"{_RUNTIME}/dist/ort-wasm-simd-threaded.asyncify.wasm",
)
"""The files that the page loads, on the CPU and on WebGPU, and that it shows in the guide."""

_log = get_plugin_logger(__name__)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page, with its scripts and onnxruntime-web."""
    if not _installed(config):
        _log.info("no page that trains: npm has not installed the packages of docs/examples/browser")
        return files
    for uri in _loaded(Path(config.docs_dir)):
        if (file := files.get_file_from_path(uri)) is not None:
            files.remove(file)
        path = str(Path(config.docs_dir, uri))
        files.append(File.generated(config, uri, abs_src_path=path, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Writes what the page trains."""
    if _installed(config):
        program = Path(config.docs_dir, "examples", "prepare.py")
        subprocess.run([sys.executable, program, "-o", Path(config.site_dir, "examples", "data")], check=True)


def _installed(config: MkDocsConfig) -> bool:
    return Path(config.docs_dir, "examples", _RUNTIME).exists()


def _loaded(docs: Path) -> Iterator[str]:
    for pattern in _LOADED:
        for path in sorted((docs / "examples").glob(pattern)):
            if path.suffix not in (".json", ".md"):
                yield path.relative_to(docs).as_posix()
