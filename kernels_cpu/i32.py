"""I32: 32-bit integers, one a block, rounded to f32."""

from .plain import ROWS

BLOCK, BYTES = 1, 4
row_f32 = ROWS["I32"]
