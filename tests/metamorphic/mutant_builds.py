"""Builds the library with a mutant: compiles the changed sources and links them with the other objects.

The sources are copied, so that the working tree does not change. CMake runs the first build; its commands are then
repeated for single sources.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

from cmake_build import CMAKE, SOURCES, cmake


class Builds:
    """Builds libraries with mutants.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder):
        assert CMAKE is not None, "no cmake"
        self._sources, self._build = folder / "ops", folder / "build"
        shutil.copytree(SOURCES, self._sources)
        shutil.copy(SOURCES.parent / "pyproject.toml", folder)  # has the version, and is looked for there
        cmake(
            *("-S", self._sources, "-B", self._build, "-G", "Unix Makefiles", "-DCMAKE_BUILD_TYPE=Debug"),
            *("-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DBNGRAD_WERROR=OFF"),
        )
        cmake("--build", self._build)
        entries = json.loads((self._build / "compile_commands.json").read_text(encoding="utf-8"))
        self._commands = {entry["file"]: shlex.split(entry["command"]) for entry in entries}
        (link,) = self._build.glob("CMakeFiles/bngrad.dir/link.txt")
        self._link = shlex.split(link.read_text(encoding="utf-8"))
        self.library = self._build / "libbngrad.so"

    def mutated(self, mutant, units):
        """Returns the library with a mutant.

        Args:
            mutant: The mutant.
            units: The sources to compile, relative to ops/.

        Raises:
            AssertionError: The mutant does not compile.
        """
        path = self._sources / mutant.file.removeprefix("ops/")
        original = path.read_text(encoding="utf-8")
        path.write_text(mutant.text(), encoding="utf-8")
        try:
            link = list(self._link)
            for number, unit in enumerate(units):
                mutated = self._build / f"mutant_{number}.o"
                command = list(self._commands[str(self._sources / unit)])
                original_object = command[command.index("-o") + 1]
                command[command.index("-o") + 1] = str(mutated)
                # Compiling without optimization is much faster.
                self._run([*command, "-O0"])
                link[link.index(original_object)] = str(mutated)
            library = self._build / "libmutant.so"
            link[link.index("-o") + 1] = str(library)
            self._run(link)
        finally:
            path.write_text(original, encoding="utf-8")
        return library

    def _run(self, command):
        done = subprocess.run(command, cwd=self._build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
