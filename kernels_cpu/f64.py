"""F64: IEEE doubles, one a block, rounded to f32."""

from .plain import ROWS

BLOCK, BYTES = 1, 8
row_f32 = ROWS["F64"]
