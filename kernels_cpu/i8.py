"""I8: signed bytes, one a block, rounded to f32."""

from .plain import ROWS

BLOCK, BYTES = 1, 1
row_f32 = ROWS["I8"]
