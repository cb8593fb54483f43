"""Tests external data: it is copied or shared, never overwritten, and belongs to one model."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import BngradError, InputError
from bngrad.io import external_data, files

EXTENT = 100  # 400 bytes are more than what stays in a model's own file
ONES = np.ones(EXTENT, np.float32)


def proto(w=2.0, u=3.0):
    """Returns a model of (x + w) * u, with a third weight in a Constant that is too small for external data."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{EXTENT}] x) => (float[{EXTENT}] y) {{
        z = Add(x, w)
        v = Mul(z, u)
        y = Add(v, c)
    }}""")
    for name, value in (("w", w), ("u", u)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value * ONES, name))
    constant = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=constant))
    return model


def inside(folder, name="model.onnx", **values):
    path = folder / name
    path.write_bytes(proto(**values).SerializeToString())
    return path


def outside(folder, name="model.onnx", data="weights.bin", **values):
    path = folder / name
    onnx.save(
        proto(**values), path, save_as_external_data=True, location=data, size_threshold=0, convert_attribute=True
    )
    return path


def run(path):
    """Returns the output of the model at a path for x = 1: (1 + w) * u."""
    from bngrad.runtime.session import session

    (value,) = set(session(path, "function").run(None, {"x": ONES})[0].tolist())
    return value


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def locations(path):
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}


# ---- where the weights go ----


@pytest.mark.parametrize("source", [inside, outside])
@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_by_default_weights_are_in_the_models_own_file(source, folder, tmp_path):
    path, target = source(tmp_path), tmp_path / folder / "out.onnx"
    target.parent.mkdir(exist_ok=True)
    files.save(files.load(path), target)
    path.rename(tmp_path / "gone")
    (tmp_path / "weights.bin").unlink(missing_ok=True)
    assert run(target) == 9
    assert not locations(target)


@pytest.mark.parametrize("asked", ["copied", None], ids=["copied", "too-large-for-protobuf"])
@pytest.mark.parametrize("source", [inside, outside])
def test_copied(source, asked, tmp_path, monkeypatch):
    if asked is None:
        monkeypatch.setattr(files, "MAX_PROTOBUF_BYTES", 1)
    path, target = source(tmp_path), tmp_path / "elsewhere" / "out.onnx"
    target.parent.mkdir()
    files.save(files.load(path), target, asked)
    path.unlink()
    (tmp_path / "weights.bin").unlink(missing_ok=True)
    assert run(target) == 9
    assert listing(target.parent) == ["out.onnx", "out.onnx.data"]
    assert locations(target) == {"out.onnx.data"}


@pytest.mark.parametrize("folder", [".", ".."], ids=["the-same-folder", "the-folder-above"])
def test_shared(folder, tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    source = outside(below)
    target = below / folder / "out.onnx"
    files.save(files.load(source), target, "shared")
    assert run(target) == 9
    assert locations(target) == {"weights.bin" if folder == "." else "below/weights.bin"}
    assert sorted((*listing(tmp_path), *listing(below))) == ["below", "model.onnx", "out.onnx", "weights.bin"]


def test_shared_in_the_current_folder(tmp_path, monkeypatch):
    outside(tmp_path)
    monkeypatch.chdir(tmp_path)
    files.save(files.load("model.onnx"), Path("out.onnx"), "shared")
    assert (run("out.onnx"), locations("out.onnx")) == (9, {"weights.bin"})


def test_sharing_leaves_new_weights_in_the_models_own_file(tmp_path, monkeypatch):
    model = files.load(outside(tmp_path))
    model.graph.initializers["u"].const_value = ir.tensor(5 * ONES, name="u")
    files.save(model, tmp_path / "out.onnx", "shared")
    assert (run(tmp_path / "out.onnx"), locations(tmp_path / "out.onnx")) == (15, {"weights.bin"})
    monkeypatch.setattr(files, "MAX_PROTOBUF_BYTES", 1)
    files.save(model, tmp_path / "large.onnx", "shared")
    assert run(tmp_path / "large.onnx") == 15
    assert locations(tmp_path / "large.onnx") == {"weights.bin", "large.onnx.data"}


def test_nothing_to_share(tmp_path):
    files.save(files.load(inside(tmp_path)), tmp_path / "out.onnx", "shared")
    assert (run(tmp_path / "out.onnx"), listing(tmp_path)) == (9, ["model.onnx", "out.onnx"])


def test_a_subgraphs_weights_are_moved_too(tmp_path):
    branch = f"float[{EXTENT}] {{}} = {{{{{', '.join(['2'] * EXTENT)}}}}}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{EXTENT}] x, bool c) => (float[{EXTENT}] y) {{
        y = If(c) <then_branch = t () => (float[{EXTENT}] a) <{branch.format("p")}> {{ a = Add(x, p) }},
                   else_branch = e () => (float[{EXTENT}] b) <{branch.format("q")}> {{ b = Mul(x, q) }}>
    }}"""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    files.save(files.load(path), tmp_path / "out.onnx", "copied")
    assert (tmp_path / "out.onnx.data").stat().st_size >= 2 * 4 * EXTENT
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    again = files.load(tmp_path / "out.onnx")
    for value in external_data.initializers(again):
        np.testing.assert_array_equal(value.const_value.numpy(), 2 * ONES)


# ---- what is refused: nothing is written ----


def test_sharing_with_another_folder(tmp_path):
    source, target = outside(tmp_path), tmp_path / "elsewhere"
    target.mkdir()
    with pytest.raises(InputError) as error:
        files.save(files.load(source), target / "out.onnx", "shared")
    assert str(error.value) == (
        f"the weights in {tmp_path / 'weights.bin'} cannot be shared with a model in {target}: ONNX requires "
        "external data in the model's folder or below it; write to that folder, or pass --external-data copied"
    )
    assert not listing(target)


@pytest.mark.parametrize("weights", [None, "copied", "shared"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "a-folder"])
def test_external_data_that_is_not_whole(damage, weights, tmp_path):
    source = outside(tmp_path)
    data = tmp_path / "weights.bin"
    content = data.read_bytes()
    data.unlink()
    if damage == "truncated":
        data.write_bytes(content[:-1])
    elif damage == "a-folder":
        data.mkdir()
    before = listing(tmp_path)
    with pytest.raises(InputError, match=r"^the model's external data cannot be read: ") as error:
        files.save(files.load(source), tmp_path / "out.onnx", weights)
    assert "\n" not in str(error.value)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("weights", [None, "copied"])
@pytest.mark.parametrize("location", ["../secret", "link"])
def test_external_data_outside_of_the_models_folder(location, weights, tmp_path, monkeypatch):
    """Is refused even if the model's path has no folder, in which case onnx-ir checks nothing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(4 * EXTENT))
    (folder / "link").symlink_to(tmp_path / "secret")
    model = proto()
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="outside the model's folder"):
        files.save(files.load("model.onnx"), Path("out.onnx"), weights)
    assert listing(folder) == ["link", "model.onnx"]


def test_external_data_of_a_function(tmp_path, monkeypatch):
    """Is relative to the model's folder, not the current one."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[1] x) => (float[1] y) { y = f.F(x) }
    <domain: "f", opset_import: ["" : 17]> F (a) => (b) { c = Constant<value = float[1] {2}>()  b = Add(a, c) }""")
    (tensor,) = [attribute.t for attribute in model.functions[0].node[0].attribute]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="two.bin")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "two.bin").write_bytes(np.float32(2).tobytes())
    monkeypatch.chdir(tmp_path)
    files.save(files.load("folder/model.onnx"), tmp_path / "out.onnx")
    (attribute,) = onnx.load("out.onnx").functions[0].node[0].attribute
    assert onnx.numpy_helper.to_array(attribute.t).tolist() == [2]
    tensor.external_data[0].value = "../two.bin"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="outside the model's folder"):
        files.save(files.load("folder/model.onnx"), tmp_path / "out.onnx")


def test_data_longer_than_the_tensor(tmp_path):
    source = outside(tmp_path)
    model = onnx.load(source, load_external_data=False)
    (length,) = [entry for entry in model.graph.initializer[0].external_data if entry.key == "length"]
    length.value = str(4 * EXTENT + 4)
    onnx.save(model, source)
    with pytest.raises(InputError, match=r"'w': the model states 404 bytes there; expected 400"):
        files.load(source)


ENTRIES = {
    "offset of text": (
        {"offset": "4 KB"},
        "tensor 'w' is external data with offset '4 KB'; expected a number of bytes",
    ),
    "offset below 0": ({"offset": "-4"}, "with offset '-4'; expected a number of bytes"),
    "offset of 30 digits": ({"offset": "9" * 30}, "; expected a number of bytes"),
    "offset after the end": ({"offset": "900"}, "it has 804 bytes; expected 400 from byte 900 on"),
    "range past the end": ({"offset": "408"}, "it has 804 bytes; expected 400 from byte 408 on"),
    "length of text": ({"length": "all"}, "with length 'all'; expected a number of bytes"),
    "short length": ({"length": "10"}, "the model states 10 bytes there; expected 400"),
    "no location": ({"location": ""}, "tensor 'w' is external data without a location"),
    "no length": ({"length": None}, ""),
    "a length of 0, for none": ({"length": "0"}, ""),
    "no offset": ({"offset": None}, ""),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_entries_of_external_data(case, tmp_path):
    """Offset, length and location are checked when the model is read, so that all commands agree."""
    changes, message = ENTRIES[case]
    source = outside(tmp_path)
    model = onnx.load(source, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    entries = {entry.key: entry.value for entry in tensor.external_data} | changes
    tensor.ClearField("external_data")
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    onnx.save(model, source)
    if message:
        with pytest.raises(BngradError, match=re.escape(message)):
            files.load(source)
        with pytest.raises(BngradError, match=re.escape(message)):
            bngrad.inspect(source)
    else:
        files.load(source)


KINDS = {
    "hard link": (lambda path: os.link(path.rename(path.with_suffix(".other")), path), "it is a hard link"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "it is not a regular file"),
    "link to a device": (lambda path: (path.unlink(), path.symlink_to(os.devnull)), "outside the model's folder"),
    "link to itself": (lambda path: (path.unlink(), path.symlink_to(path.name)), "cannot be read"),
    "link in the folder": (lambda path: path.symlink_to(path.rename(path.with_suffix(".other")).name), ""),
}


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("weights", [None, "copied", "shared"])
def test_kinds_of_files_with_external_data(case, weights, tmp_path):
    change, message = KINDS[case]
    source = outside(tmp_path)
    change(tmp_path / "weights.bin")
    if message:
        with pytest.raises(InputError, match=message):
            files.load(source)
    else:
        files.save(files.load(source), tmp_path / "out.onnx", weights)
        assert run(tmp_path / "out.onnx") == 9


# ---- what is there already ----


def test_the_inputs_data_are_never_overwritten(tmp_path):
    """Even if the output's external data would have the same name."""
    source = outside(tmp_path, data="out.onnx.data")
    before = contents(tmp_path)
    files.save(files.load(source), tmp_path / "out.onnx", "copied")
    assert locations(tmp_path / "out.onnx") == {"out.onnx.1.data"}
    assert (run(source), run(tmp_path / "out.onnx")) == (9, 9)
    assert before.items() <= contents(tmp_path).items()


def test_a_model_that_was_given_another_name_keeps_its_data(tmp_path):
    target = tmp_path / "out.onnx"
    files.save(files.load(inside(tmp_path)), target, "copied")
    target.rename(tmp_path / "kept.onnx")
    files.save(files.load(inside(tmp_path, u=7.0)), target, "copied")
    assert (run(tmp_path / "kept.onnx"), run(target)) == (9, 21)


def _share(target):
    files.save(files.load(target), target.with_name("other.onnx"), "shared")
    return target.with_name("other.onnx")


def _share_from_above(target):
    files.save(files.load(target), target.parents[1] / "other.onnx", "shared")
    return target.parents[1] / "other.onnx"


def _copy(target):
    return Path(shutil.copy(target, target.with_name("a copy without suffix")))


@pytest.mark.parametrize("then", ["copied", "shared", None])
@pytest.mark.parametrize("other", [_share, _share_from_above, _copy])
def test_data_that_another_model_shares_are_kept(other, then, tmp_path):
    target = tmp_path / "below" / "out.onnx"
    target.parent.mkdir()
    files.save(files.load(inside(tmp_path)), target, "copied")
    sharing = other(target)
    files.save(files.load(inside(tmp_path, u=7.0)), target, then)
    assert (run(sharing), run(target)) == (9, 21)
    assert external_data.left_over(target) == [tmp_path / "below" / "out.onnx.data"]


def test_data_with_the_same_bytes_are_used_again(tmp_path):
    target = tmp_path / "out.onnx"
    first, second = "out.onnx.data", "out.onnx.1.data"
    for u, expected in ((3.0, first), (7.0, second), (7.0, second), (3.0, first)):
        files.save(files.load(inside(tmp_path, u=u)), target, "copied")
        assert (run(target), locations(target)) == (3 * u, {expected})
    assert listing(tmp_path) == ["model.onnx", "out.onnx", "out.onnx.1.data", "out.onnx.data"]


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_and_a_hard_link_are_not_used_again(tmp_path):
    target, data = tmp_path / "out.onnx", tmp_path / "out.onnx.data"
    files.save(files.load(inside(tmp_path)), target, "copied")
    os.link(data.rename(tmp_path / "moved"), data)
    files.save(files.load(inside(tmp_path)), target, "copied")
    assert (run(target), locations(target)) == (9, {"out.onnx.1.data"})


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_an_output_that_is_a_link_to_another_folder(tmp_path):
    """External data would be beside the target, where no program looks that opens the link."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.onnx"
    link.symlink_to("real/out.onnx")
    shared = outside(tmp_path / "real", data="weights.bin")
    for source, weights in ((inside(tmp_path), "copied"), (shared, "shared")):
        with pytest.raises(InputError, match=r"is a link to .*real/out.onnx, and its weights are external data"):
            files.save(files.load(source), link, weights)
    assert listing(tmp_path / "real") == ["model.onnx", "weights.bin"]
    files.save(files.load(inside(tmp_path)), link)
    assert (run(link), link.is_symlink(), run(tmp_path / "real" / "out.onnx")) == (9, True, 9)


def test_data_that_are_shared_with_the_model_that_is_written_over_stay(tmp_path):
    source, target = outside(tmp_path, data="out.onnx.data"), tmp_path / "out.onnx"
    for weights in ("shared", "copied", "shared", None):
        files.save(files.load(source), target, weights)
        assert (run(source), run(target)) == (9, 9)
    assert listing(tmp_path) == ["model.onnx", "out.onnx", "out.onnx.1.data", "out.onnx.data"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("where", ["data", "model"])
def test_a_failure_leaves_the_old_model_with_its_data(where, error, tmp_path, monkeypatch):
    target = tmp_path / "out.onnx"
    files.save(files.load(inside(tmp_path)), target, "copied")
    source = inside(tmp_path, u=7.0)
    before = contents(tmp_path)

    def fail(*_arguments):
        raise error

    model = files.load(source)
    if where == "data":
        monkeypatch.setattr(type(model.graph.initializers["u"].const_value), "tobytes", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((InputError, KeyboardInterrupt), match=r"cannot be written: No space|^$"):
        files.save(model, target, "copied")
    assert contents(tmp_path) == before
    assert run(target) == 9


def test_an_output_folder_that_is_a_link(tmp_path):
    """Sharing depends on resolved paths, not on names."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    source = outside(tmp_path / "real")
    files.save(files.load(source), tmp_path / "link" / "out.onnx", "shared")
    assert run(os.path.realpath(tmp_path / "link" / "out.onnx")) == 9
