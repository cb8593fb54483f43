"""Tests that installed packages are pinned by hash, models are never run as code, and arrays have no objects."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import onnx

import bngrad
from bngrad.oracle import interpreter, packages

PACKAGE = Path(bngrad.__file__).parent
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

UNPICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "torch",
    "yaml",
}
EVALUATORS = {"eval", "exec", "compile", "__import__", "execfile"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
UNPICKLING_CALLS = {"torch.load", "torch.hub.load", "torch.jit.load", "torch.export.load", "torch.package"}
LOADS = {"np.load", "numpy.load", "np.fromfile", "numpy.fromfile"}


def offences(source):
    """Returns the calls of a module that may execute data, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.split(".")[0] in UNPICKLERS:
                    yield node.lineno, f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if (
            called in EVALUATORS
            or called.removeprefix("builtins.") in EVALUATORS
            or called in SHELLS | UNPICKLING_CALLS
        ):
            yield node.lineno, f"calls {called}"
        if called in LOADS and keywords.get("allow_pickle") != "False":
            yield node.lineno, f"calls {called} without allow_pickle=False"
        if keywords.get("allow_pickle", "False") != "False":
            yield node.lineno, "allows pickle"
        if keywords.get("shell", "False") != "False":
            yield node.lineno, "runs a shell"


def test_no_module_can_run_what_it_reads():
    seen = [
        f"{module}:{line}: {what}"
        for module, path in MODULES.items()
        for line, what in offences(path.read_text(encoding="utf-8"))
        # The one package that imports PyTorch, whose loaders it does not call.
        if not (module.startswith("torch/") and what.startswith("imports torch"))
    ]
    assert seen == []


def test_and_this_would_be_seen():
    lines = (
        "import pickle",
        "from torch import load",
        "torch.load(path)",
        "torch.hub.load('a', 'b')",
        "eval('1')",
        "exec(model.doc_string)",
        "builtins.exec('')",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "np.load('x.npz')",
        "np.load('x.npz', allow_pickle=True)",
        "np.save('x', y, allow_pickle=pickled)",
    )
    assert [line for line in lines if not list(offences(f"def f():\n    {line}\n"))] == []


# ---- what the oracle's environment is made of ----


def requirements():
    """Returns the requirements by name with their hashes."""
    text = re.sub(r"#.*", "", packages.REQUIREMENTS.read_text(encoding="utf-8")).replace("\\\n", " ")
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}


def test_every_requirement_is_pinned_by_hash():
    pinned = requirements()
    assert pinned.keys() == {"==".join(pin) for pin in packages.pins().items()}
    for name, options in pinned.items():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", name)
        # At least one wheel for each Python version that the oracle supports.
        assert len(options) >= len(interpreter.SUPPORTED)
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options)
        assert len(set(options)) == len(options)


def test_pip_is_told_to_check_them_and_to_build_nothing(monkeypatch):
    commands = []
    monkeypatch.setattr(packages, "_follow", lambda command, *_: commands.append(command))
    packages.install_packages(Path("python"), lambda *_: None)
    ((*command,),) = commands
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps"} <= set(command)
    assert f"--requirement={packages.REQUIREMENTS}" in command


def test_no_index_is_named():
    """The user chooses the package index; only the oracle runs pip."""
    for path in [*MODULES.values(), packages.REQUIREMENTS]:
        address = r"|https?://" if path.parent == packages.REQUIREMENTS.parent else ""
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"--(extra-)?index-url|--find-links|--trusted-host{address}", text), path


# ---- what a model may ask for, in vain ----


def test_a_model_names_no_library(tmp_path, monkeypatch):
    """Libraries come from BNGRAD_LIBRARY or the package, regardless of a model's metadata."""
    from bngrad.cli import run

    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "evil" : 1]>
    g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3] y, float[3] m2, float[3] v2) {
        y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    }""")
    touched = tmp_path / "touched"
    for key in ("ort_config", "custom_op_library", "library", "bngrad_library"):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, str(tmp_path / "evil.so")
    model.graph.doc_string = model.doc_string = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    onnx.save(model, tmp_path / "model.onnx")
    opened = []
    import ctypes

    cdll = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path, *rest, **more: opened.append(path) or cdll(path, *rest, **more)
    )
    out = str(tmp_path / "out.onnx")
    assert run(["inspect", str(tmp_path / "model.onnx")]) == 0
    assert run(["rewrite", str(tmp_path / "model.onnx"), "-o", out]) == 0
    bngrad.session(out)
    assert not [path for path in opened if "evil" in str(path)]
    assert not touched.exists()
