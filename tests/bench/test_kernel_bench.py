"""The kernel table: every cell is a kernel that the runtime would take, its figures fit together."""

from __future__ import annotations

import pytest
from edgert.kernels_cpu import isa
from edgert.kernels_cpu.bench import Case, bench_kernels


def test_figures_fit_together() -> None:
    rows = list(bench_kernels(["Q4_K", "F16"], [1, 4, 40], threads=1, repeat=1, cold_bytes=8 << 20))
    assert [(row.kernel.partition("[")[2], row.rows) for row in rows] == [
        (f"{name}]", m) for name in ("Q4_K", "F16") for m in (1, 4, 40)
    ]
    for row in rows:
        assert row.level == isa.choose().name
        assert row.threads == 1
        assert 0 < row.seconds < 60
        weights = row.gb_per_s * 1e9 * (256 / 144 if "Q4_K" in row.kernel else 1 / 2)  # per second
        assert row.gflop_per_s == pytest.approx(2 * row.rows * weights / 1e9)
        # A busy machine may be slow while the ceilings are measured, but not twenty times.
        assert 0 < row.share < 20


@pytest.mark.parametrize(
    ("level", "name", "m", "kernel"),
    [
        ("avx512vnni", "Q4_K", 1, "gemv.decode[Q4_K]"),
        ("avx512vnni", "Q4_K", 512, "gemm.prompt[Q4_K]"),
        ("avx512vnni", "F16", 16, "gemv.dense[F16]"),
        ("avx512vnni", "F16", 512, "gemm.exact[F16]"),
        ("amx", "Q4_K", 512, "amx.prompt[Q4_K]"),
        ("amx", "Q4_K", 32, "gemv.decode[Q4_K]"),
        ("amx", "IQ4_NL", 1, "gemv.decode[IQ4_NL]"),
        ("amx", "IQ4_NL", 512, "amx.prompt[IQ4_NL]"),
    ],
)
def test_kernels_are_those_that_the_runtime_takes(level: str, name: str, m: int, kernel: str) -> None:
    assert Case(name, m, isa.BY_NAME[level], 1, 1 << 20).kernel == kernel


def test_mistakes_name_the_value() -> None:
    with pytest.raises(ValueError, match="'Q9_K' has no kernels; known are "):
        next(bench_kernels(["Q9_K"]))
    with pytest.raises(ValueError, match="rows and repeat must be at least 1"):
        next(bench_kernels(["Q4_K"], [0]))
    with pytest.raises(isa.IsaError, match="'avx9' is not a level"):
        next(bench_kernels(["Q4_K"], levels=["avx9"]))
