"""I64: 64-bit integers, one a block, rounded to f32."""

from .plain import ROWS

BLOCK, BYTES = 1, 8
row_f32 = ROWS["I64"]
