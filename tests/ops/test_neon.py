"""The kernels for AArch64, compiled by a cross compiler and run by an emulator of that CPU.

Debian and Ubuntu have both: g++-aarch64-linux-gnu, and qemu-user or qemu-user-static.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from cmake_build import CMAKE, SOURCES, cmake

TARGET = "aarch64-linux-gnu"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

TOOLCHAIN = f"""\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER {TARGET}-gcc)
set(CMAKE_CXX_COMPILER {TARGET}-g++)
"""

# Every number of 16 bits and every upper half of a float (infinities, NaNs, denormals, zeros of both signs), as dY
# in dX = gain * dY and as the Z of a ReLU. The gains make results that are exact, rounded, denormal and too large;
# the last is a NaN of all ones, which rounding as if it were a number would make zero.
EVERY_NUMBER = r"""
#include <stdio.h>
#include <string.h>
#include "bngrad.h"

enum { kCount = 1 << 16, kGains = 8 };
static uint16_t halves[kGains * kCount], reversed[kGains * kCount], half_dx[kGains * kCount];
static uint32_t floats[kGains * kCount], reversed_floats[kGains * kCount], float_dx[kGains * kCount];

static int write_gradients(int32_t type, const void* dy, const void* z, void* dx, size_t size) {
  const int64_t dims[] = {kGains, kCount}, axes[] = {1};
  const bngrad_layout layout = {dims, axes, 2, 1, type, BNGRAD_FLOAT, BNGRAD_FLOAT};
  float scale[kGains] = {1, -1, 1.f / 3, 0x1.234p-12f, 0x1.8p-20f, 30000, 0x1p100f};
  const float mean[kGains] = {0}, inv_std[] = {1, 1, 1, 1, 1, 1, 1, 1};
  memset(&scale[kGains - 1], 0xff, sizeof(float));
  int failed = bngrad_batch_normalization_grad(&layout, 0, dy, dy, scale, mean, inv_std, dx, NULL, NULL, 1,
                                               NULL, 0);
  failed |= fwrite(dx, size, kGains * kCount, stdout) != kGains * kCount;
  failed |= bngrad_batch_normalization_relu_grad(&layout, 0, dy, z, dy, scale, mean, inv_std, dx, NULL, NULL, 1,
                                                 NULL, 0);
  failed |= fwrite(dx, size, kGains * kCount, stdout) != kGains * kCount;
  return failed;
}

int main(void) {
  for (uint32_t i = 0; i < kGains * kCount; ++i) {
    /* Of two NaNs a compiler may choose either, so the last gain multiplies numbers. */
    const uint32_t bits = i < (kGains - 1) * kCount ? i : i & 0x3fff;
    halves[i] = (uint16_t)bits;
    reversed[i] = (uint16_t)~i;
    floats[i] = bits << 16;
    reversed_floats[i] = ~i << 16;
  }
  return write_gradients(BNGRAD_FLOAT16, halves, reversed, half_dx, sizeof(uint16_t)) |
         write_gradients(BNGRAD_BFLOAT16, halves, reversed, half_dx, sizeof(uint16_t)) |
         write_gradients(BNGRAD_FLOAT, floats, reversed_floats, float_dx, sizeof(uint32_t));
}
"""
RESULT_BYTES = 2 * 8 * 2**16 * (2 + 2 + 4)

MISSING = [
    name
    for name, path in (
        ("cmake", CMAKE),
        (f"{TARGET}-g++", shutil.which(f"{TARGET}-g++")),
        ("qemu-aarch64", EMULATOR),
    )
    if path is None
]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),  # an emulator is slow
    pytest.mark.skipif(MISSING != [], reason=f"not installed: {', '.join(MISSING)}"),
]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def emulate(program, isa=None):
    """Runs the program, with the instruction set forced if one is given."""
    forced = ["-E", f"BNGRAD_ISA={isa}"] if isa else ["-U", "BNGRAD_ISA"]
    command = [EMULATOR, "-L", f"/usr/{TARGET}", *forced, str(program)]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The folder of a CMake build for AArch64 with the test programs."""
    folder = tmp_path_factory.mktemp("aarch64")
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN, encoding="utf-8")
    cmake("-S", SOURCES, "-B", folder, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DBUILD_TESTING=ON")
    for target in ("all", "kernels_o0"):
        cmake("--build", folder, "--parallel", "2", "--target", target)
    return folder


@pytest.fixture(scope="module")
def every_number(build):
    """The program above, compiled as a C user would."""
    source, program = build / "every_number.c", build / "every_number"
    source.write_text(EVERY_NUMBER, encoding="utf-8")
    library = [f"-L{build}", f"-Wl,-rpath,{build}", "-lbngrad"]
    run(f"{TARGET}-gcc", "-std=c99", "-Wall", "-Wextra", f"-I{SOURCES}", source, *library, "-o", program)
    return program


def test_bit_for_bit_and_in_bounds(build):
    done = emulate(build / "tests" / "kernels_test")
    output = done.stdout.decode()
    assert done.returncode == 0, output
    for isa in ("neon", "scalar"):
        assert re.search(rf"^{isa}: [1-9]\d* shapes", output, re.MULTILINE)


@pytest.mark.parametrize(("isa", "chosen"), [(None, "neon"), ("neon", "neon"), ("scalar", "scalar")])
def test_choice(build, isa, chosen):
    done = emulate(build / "tests" / "c_caller", isa)
    assert done.returncode == 0, done.stdout
    assert f", {chosen} of 2 instruction sets" in done.stdout.decode()


def test_other_machines_names_are_unknown(build):
    done = emulate(build / "tests" / "c_caller", "avx2")
    assert done.returncode == 1
    assert done.stdout.decode().strip() == "BNGRAD_ISA=avx2 is unknown; expected one of neon, scalar"


def test_every_number(every_number):
    neon, scalar = emulate(every_number, "neon"), emulate(every_number, "scalar")
    assert neon.returncode == scalar.returncode == 0
    assert len(neon.stdout) == RESULT_BYTES
    assert neon.stdout == scalar.stdout


@pytest.mark.skipif(shutil.which(f"{TARGET}-nm") is None, reason=f"not installed: {TARGET}-nm")
def test_kernel_files_are_islands(build):
    """As on every machine, see test_programs.py: at -O0 one table each, nothing weak, nothing of another file."""
    objects = {o.name.split(".")[0]: o for o in build.glob("**/kernels_o0.dir/**/*.o")}
    assert set(objects) == {"neon", "scalar"}
    for isa, path in objects.items():
        lines = [line.split() for line in run(f"{TARGET}-nm", "--portability", path).splitlines()]
        public = {(line[0], line[1]) for line in lines if not line[1].islower() or line[1] in "vwu"}
        allowed = {(name, "U") for name in ("_GLOBAL_OFFSET_TABLE_", "memcpy", "memset", "__stack_chk_fail")}
        table = (f"_ZN6bngrad{len(isa)}{isa}6kTableE", "D")
        assert table in public
        assert public - allowed <= {table}


def test_products_and_sums_stay_apart(build):
    """AArch64 always has fused multiply-add, so only a compiler flag keeps one rounding from replacing two.

    Exact products are written so, in vectors of doubles, and only they.
    """
    fused = {}
    for path in build.glob("**/bngrad_core.dir/kernels/*.o"):
        assembly = run(f"{TARGET}-objdump", "-d", path)
        assert re.search(r"\tfmul\t", assembly)
        matches = re.findall(r"\t(fn?m(?:add|sub|la|ls))\t\w+(\.\w+)?", assembly)
        fused[path.name.split(".")[0]] = set(matches)
    assert fused == {"neon": {("fmla", ".2d")}, "scalar": set()}
