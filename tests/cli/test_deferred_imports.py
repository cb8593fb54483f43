"""Dependencies that a command imports only if it uses them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from bngrad.__main__ import main

sys.argv = ["bngrad", *sys.argv[1:]]
try:
    main()
except SystemExit as exit:
    assert exit.code == 0, exit.code
import onnx_ir

print("onnxscript.optimizer._optimizer" in sys.modules)
print("sympy.core" in sys.modules, onnx_ir.SymbolicDim("N") + 1, onnx_ir.SymbolicDim("Max(N, 2)").simplify())
print("sympy.core" in sys.modules)
"""


@pytest.mark.parametrize("command", [["inspect", "--json"], ["differentiate", "-o", "graph.onnx"]])
def test_deferred_imports(command, request, tmp_path):
    model = request.config.rootpath / "models" / "digits_resnet20.onnx"
    arguments = [sys.executable, "-c", PROGRAM, command[0], str(model), *command[1:]]
    process = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-3:] == ["False", "False N + 1 Max(2, N)", "True"]
