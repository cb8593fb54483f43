"""Which cases `bench_kernels.py` times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernel_serve import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator


class Row(NamedTuple):
    """A case, the group of shapes that it belongs to, and the number of threads."""

    group: str
    asked: Asked
    threads: int

    @property
    def section(self) -> str:
        """The properties that rows shown together have in common."""
        asked = self.asked
        mode = " frozen" if asked.frozen else ""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{asked.op}{mode}, {asked.dtype}, {asked.layout}, {threads}"


RESNET50 = (
    (64, 112),
    (64, 56),
    (128, 56),
    (256, 56),
    (128, 28),
    (256, 28),
    (512, 28),
    (256, 14),
    (512, 14),
    (1024, 14),
    (512, 7),
    (2048, 7),
)
"""Channels, and height and width, of its batch norms for images of 224x224."""


def _densenet121() -> list[tuple[int, int]]:
    """Four blocks, each with a batch norm before every layer, one in it, and one after the block."""
    shapes = [(64, 112)]
    for layers, first, side in ((6, 64, 56), (12, 128, 28), (24, 256, 14), (16, 512, 7)):
        shapes += [(first + 32 * layer, side) for layer in range(layers + 1)] + [(128, side)]
    return list(dict.fromkeys(shapes))


def _images(batch: int, shapes: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> list[tuple[int, ...]]:
    return [(batch, channels, side, side) for channels, side in shapes]


GROUPS: dict[str, list[tuple[int, ...]]] = {
    "resnet50-32": _images(32, RESNET50),
    "resnet50-8": _images(8, RESNET50),
    "resnet50-1": _images(1, RESNET50),
    "densenet121-8": _images(8, _densenet121()),
    "2-D": [(1024, 1024), (65536, 64), (64, 100_000)],
    "1-D": [(32, 256, 1024), (64, 512, 128), (8, 64, 16_000)],
    "3-D": [(2, 32, 16, 112, 112), (4, 64, 8, 56, 56), (8, 128, 16, 14, 14)],
    "odd": [(8, 3, 225, 225), (7, 61, 31, 31), (4, 67, 49), (16, 100, 13, 13)],
    "small": [(1, 4, 4, 4), (2, 8, 7, 7), (1, 16, 14, 14), (1, 64, 7, 7)],
    "huge": [(32, 256, 112, 112), (1, 3, 3200, 3200)],
}
"""Shapes by name: N, C and the spatial extents, whatever the layout."""

BOTH = ("NCHW", "NHWC")
TRAINED = ("resnet50-32", "resnet50-8")

# Groups, layouts, dtype, op, frozen, threads.
FULL = [
    (tuple(g for g in GROUPS if g not in {"densenet121-8", "2-D"}), BOTH, "float", "grad", False, 2),
    (("densenet121-8", "2-D"), ("NCHW",), "float", "grad", False, 2),
    (("resnet50-8",), BOTH, "float", "grad", False, 1),
    (TRAINED, BOTH, "float", "grad", True, 2),
    (TRAINED, BOTH, "float", "relu-grad", False, 2),
    *((TRAINED, BOTH, dtype, "grad", False, 2) for dtype in ("float16", "bfloat16", "double")),
]

QUICK = {
    "NCHW": [(32, 64, 112, 112), (32, 256, 56, 56), (8, 64, 56, 56), (32, 1024, 14, 14), (32, 2048, 7, 7)],
    "NHWC": [(32, 64, 112, 112), (8, 64, 56, 56), (32, 2048, 7, 7)],
}


def full_rows() -> Iterator[Row]:
    """All of the table, a section at a time."""
    for groups, layouts, dtype, op, frozen, threads in FULL:
        for layout in layouts:
            for group in groups:
                for extents in GROUPS[group]:
                    yield Row(group, Asked(dtype, op, frozen, layout, extents), threads)


def quick_rows() -> Iterator[Row]:
    """Eight shapes: less than two minutes."""
    for layout, shapes in QUICK.items():
        for extents in shapes:
            yield Row("quick", Asked("float", "grad", frozen=False, layout=layout, extents=extents), 2)
