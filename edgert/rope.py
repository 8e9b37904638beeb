"""Tables of rotary angles, filled as the context grows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .config import RopeScaling

STEP = 256  # positions filled at a time

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def inverse_frequencies(n_rot: int, base: float, scaling: RopeScaling, factors: F32 | None) -> tuple[F64, float]:
    """(angle per position for each of n_rot / 2 pairs, factor on cosine and sine).

    `factors` divide the frequencies (Llama 3, longrope). Linear: Chen et al. 2023. YaRN: Peng et al. 2023, in ggml's
    form: interpolated below, extrapolated above, a ramp between the correction dimensions.
    """
    extrapolated = np.asarray(float(base) ** (-np.arange(0, n_rot, 2) / n_rot), np.float64)
    if factors is not None:
        extrapolated = extrapolated / np.asarray(factors, np.float64)
    interpolated = extrapolated / scaling.factor
    if scaling.kind != "yarn" or scaling.extrapolation == 0:
        return (interpolated if scaling.kind in ("linear", "yarn") else extrapolated), scaling.attn_factor

    def correction(rotations: float) -> float:
        return n_rot * math.log(scaling.original_context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(correction(scaling.beta_fast)))
    high = min(n_rot - 1.0, math.ceil(correction(scaling.beta_slow)))
    ramp = 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    ramp = ramp * scaling.extrapolation
    angles = interpolated * (1 - ramp) + extrapolated * ramp
    log = 0.1 * math.log(scaling.factor)
    return angles, scaling.attn_factor * (1 + log) / (1 + log * scaling.log_multiplier)


class RopeTable:
    """f32 (n_ctx, n_rot / 2, 2): cosine and sine of each position; rows appear STEP at a time."""

    def __init__(self, n_ctx: int, frequencies: F64, magnitude: float) -> None:
        self._frequencies, self._magnitude, self._filled = frequencies, magnitude, 0
        self._table = np.empty((n_ctx, len(frequencies), 2), np.float32)  # untouched rows take no memory

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)

    def fill(self, n: int) -> None:
        """Make positions 0 .. n-1 valid."""
        while self._filled < n:
            start, end = self._filled, min(self._filled + STEP, len(self._table))
            angles = np.arange(start, end, dtype=np.float64)[:, None] * self._frequencies
            self._table[start:end, :, 0] = np.cos(angles) * self._magnitude
            self._table[start:end, :, 1] = np.sin(angles) * self._magnitude
            self._filled = end
