"""I16: 16-bit integers, one a block, rounded to f32."""

from .plain import ROWS

BLOCK, BYTES = 1, 2
row_f32 = ROWS["I16"]
