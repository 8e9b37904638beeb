"""Rotary angles: plain, linear, divided, YaRN, against the formulas of their papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgert.config import RopeScaling
from edgert.rope import STEP, RopeTable, inverse_frequencies

NONE = RopeScaling("none", 1.0, 4096, 1.0)


def test_plain() -> None:
    angles, magnitude = inverse_frequencies(8, 10000.0, NONE, None)
    np.testing.assert_allclose(angles, [1, 0.1, 0.01, 0.001])
    assert magnitude == 1


def test_linear_and_divided() -> None:
    linear = RopeScaling("linear", 4.0, 4096, 1.0)
    np.testing.assert_allclose(inverse_frequencies(4, 100.0, linear, None)[0], [0.25, 0.025])
    factors = np.array([1, 8], np.float32)
    np.testing.assert_allclose(inverse_frequencies(4, 100.0, NONE, factors)[0], [1, 0.0125])


def test_yarn() -> None:
    """High frequencies stay, low ones are interpolated, a ramp lies between; attention is 1 + 0.1 ln(factor) warmer."""
    scaling = RopeScaling("yarn", 4.0, 2048, 1.0)
    angles, magnitude = inverse_frequencies(64, 10000.0, scaling, None)
    plain = 10000.0 ** (-np.arange(0, 64, 2) / 64)

    def dimension(rotations: float) -> float:
        return 64 * math.log(2048 / (rotations * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = math.floor(dimension(32)), math.ceil(dimension(1))
    assert 0 < low < high < 31
    np.testing.assert_allclose(angles[: low + 1], plain[: low + 1])
    np.testing.assert_allclose(angles[high:], plain[high:] / 4)
    middle = (low + high) // 2
    share = (middle - low) / (high - low)
    np.testing.assert_allclose(angles[middle], plain[middle] * (1 - share) + plain[middle] / 4 * share)
    assert magnitude == pytest.approx(1 + 0.1 * math.log(4))

    cancelled = RopeScaling("yarn", 4.0, 2048, 1.5, log_multiplier=1.0)  # DeepSeek's and Mistral's "mscale_all_dim"
    assert inverse_frequencies(64, 10000.0, cancelled, None)[1] == pytest.approx(1.5)


def test_table_grows() -> None:
    """Rows appear as positions are asked for; each is cosine and sine of position times frequency."""
    table = RopeTable(3 * STEP - 5, np.array([1.0, 0.01]), 2.0)
    table.fill(STEP + 1)
    rows = table._table
    for position in (0, 1, STEP, 2 * STEP - 1):
        expected = [[2 * math.cos(position * f), 2 * math.sin(position * f)] for f in (1.0, 0.01)]
        np.testing.assert_allclose(rows[position], expected, atol=1e-6)
    table.fill(3 * STEP - 5)
    np.testing.assert_allclose(rows[-1, 0, 0], 2 * math.cos(3 * STEP - 6), atol=1e-6)
