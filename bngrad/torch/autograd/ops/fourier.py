"""DFT and STFT; a complex number is a pair of real ones."""

from __future__ import annotations

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

_AXIS_IS_INPUT = 20
"""The version of DFT whose axis is an input."""


@op("DFT", since=17)
def dft(
    x: Tensor,
    length: Tensor | None = None,
    along: Tensor | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    version: int,
) -> Tensor:
    """The spectrum along an axis; of an inverse one-sided one, the real numbers."""
    if version >= _AXIS_IS_INPUT:
        axis = -2 if along is None else int(along)
    axis %= x.ndim
    numbers = None if length is None else int(length)
    if inverse and onesided:
        numbers = 2 * (x.shape[axis] - 1) if numbers is None else numbers
        return torch.fft.irfft(_complex(x), numbers, axis).unsqueeze(-1)
    transform = torch.fft.ifft if inverse else torch.fft.fft
    spectrum = transform(_complex(x), numbers, axis)
    return torch.view_as_real((_half(spectrum, axis) if onesided else spectrum).resolve_conj())


@op("STFT", since=17)
def stft(
    x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None, *, onesided: int = 1
) -> Tensor:
    """The spectra of frames, times a window."""
    if window is None:
        frames = _complex(x).unfold(1, x.shape[1] if length is None else int(length), int(step))
    else:
        frames = _complex(x).unfold(1, window.shape[0], int(step)) * window
    spectrum = torch.fft.fft(frames)
    return torch.view_as_real(_half(spectrum, 2) if onesided else spectrum)


def _complex(x: Tensor) -> Tensor:
    """Returns complex numbers of pairs, or real ones."""
    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)


def _half(spectrum: Tensor, axis: int) -> Tensor:
    """Returns the frequencies of real numbers that are not the conjugate of another."""
    return spectrum.narrow(axis, 0, spectrum.shape[axis] // 2 + 1)
