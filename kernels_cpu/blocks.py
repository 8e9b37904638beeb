"""What the quant types share: the loops over blocks, and 6-bit scale unpacking of the K types.

Every type file defines BLOCK (weights), BYTES (of a block), SUB (weights that share a scale), QMAX (the largest
stored quant), OFFSET (a power of two or 0, subtracted from it) or HAS_MIN (a value subtracted instead), SIGNED
(quants are s8), and

    row_u8(w, nb, q, s, m)    decode nb blocks: quants, and scale and min per SUB weights
    chunks(p)                 256 weights at p as four u8 x 64, in the order that `native` describes
    scales256(p)              their scales and mins, f32 x 256 / SUB each; the scales twice where there is no min

so that w = s * (q - OFFSET), or s * q - m.
"""

from .simd import (
    bitcast,
    concat,
    const,
    from_words,
    half_at,
    half_to_f32,
    i64_at,
    inline,
    load,
    pick,
    set_f32,
    shuffle,
    splat,
    spread_bits,
    store,
    strided,
    to_f32,
    u32_at,
)

full8, full16 = splat("f32", 8), splat("f32", 16)
words, bytes64 = bitcast("u32", 16), bitcast("u8", 64)
_word, _bytes8 = splat("i64", 1), bitcast("u8", 8)
_u8x16, _two_halves, _bytes32 = load("u8", 16), load("u16", 2), bitcast("u8", 32)
_interleaved = shuffle(*[i // 2 + 8 * (i % 2) for i in range(16)])
_first8, _second8 = pick(*[0] * 8), pick(*[1] * 8)



def pieces(*starts):
    """(a) -> eight bytes of a from each of eight starts."""
    return pick(*[start + i for start in starts for i in range(8)])


def pieces2(*starts):
    """(a, b) -> the same of a and b concatenated."""
    return shuffle(*[start + i for start in starts for i in range(8)])


def shifts(*bits):
    """A shift for each of eight runs, for the words of a chunk."""
    return const("u32", *[n for n in bits for _ in range(2)])


@inline
def u8x8(word):
    """Eight bytes of an int64 as a vector."""
    return _bytes8(_word(word))


@inline
def scales_6bit(p):
    """The twelve packed bytes at p -> (eight 6-bit scales, eight 6-bit mins) as f32x8, for Q4_K and Q5_K."""
    a, b, c = u32_at(p), u32_at(p + 4), u32_at(p + 8)
    high_s = (c & 0x0F0F0F0F) | ((a >> 2) & 0x30303030)
    high_m = ((c >> 4) & 0x0F0F0F0F) | ((b >> 2) & 0x30303030)
    s = (a & 0x3F3F3F3F) | (high_s << 32)
    m = (b & 0x3F3F3F3F) | (high_m << 32)
    return to_f32(u8x8(s)), to_f32(u8x8(m))


@inline
def scales_and_mins(p):
    """Half d and half dmin at p, twelve bytes of 6-bit scales and mins behind them -> (d * sc, dmin * mn), f32 x 8."""
    sc, mn = scales_6bit(p + 4)
    heads = half_to_f32(_two_halves(p))
    return sc * _first8(heads), mn * _second8(heads)


def rows256(block_bytes, sub, quants, scales, has_min):
    """row_u8 of a K type from `quants(p, j)`, the j-th 64 of a block in order, and its scales and mins."""

    @inline
    def row_u8(w, nb, q, s, m):
        for i in range(nb):
            p, to = w + block_bytes * i, q + 256 * i
            scale, low = scales(p)
            store(s + 1024 // sub * i, scale)
            if has_min:
                store(m + 1024 // sub * i, low)
            store(to, quants(p, 0))
            store(to + 64, quants(p, 1))
            store(to + 128, quants(p, 2))
            store(to + 192, quants(p, 3))

    return row_u8


def rows32(block_bytes, quants, has_min):
    """row_u8 of a type with 32 weights a block, half d first, half m second."""

    @inline
    def row_u8(w, nb, q, s, m):
        for i in range(nb):
            p = w + block_bytes * i
            store(q + 32 * i, quants(p))
            set_f32(s + 4 * i, half_at(p))
            if has_min:
                set_f32(m + 4 * i, -half_at(p + 2))

    return row_u8


def transposed():
    """(u8 x 64 four times: 256 in their order) -> `chunks`."""
    ab, cd = (pieces2(*[32 * r + 8 * c for c in both for r in range(4)]) for both in ((0, 1), (2, 3)))
    low, high = (pick(*range(32 * i, 32 * i + 32)) for i in (0, 1))

    @inline
    def op(q0, q1, q2, q3):
        a, b, c, d = ab(q0, q1), cd(q0, q1), ab(q2, q3), cd(q2, q3)
        return concat(low(a), low(c)), concat(high(a), high(c)), concat(low(b), low(d)), concat(high(b), high(d))

    return op


def chunks32(block_bytes, quants):
    """`chunks` of a type with 32 weights a block from its quants in order."""
    in_chunks = transposed()

    @inline
    def two(p):
        return concat(quants(p), quants(p + block_bytes))

    @inline
    def chunks(p):
        return in_chunks(two(p), two(p + 2 * block_bytes), two(p + 4 * block_bytes), two(p + 6 * block_bytes))

    return chunks


def nibble_chunks(block_bytes, start):
    """`chunks` of eight blocks of 32 nibbles (low ones first) from byte `start` of each."""
    first, second = (pieces2(*[16 * (r // 2) + 64 * (r % 2) + 8 * c for r in range(8)]) for c in (0, 1))

    @inline
    def every_second(p):
        return concat(
            concat(_u8x16(p), _u8x16(p + 2 * block_bytes)),
            concat(_u8x16(p + 4 * block_bytes), _u8x16(p + 6 * block_bytes)),
        )

    @inline
    def chunks(p):
        even, odd = every_second(p + start), every_second(p + start + block_bytes)
        a, b = first(even, odd), second(even, odd)
        return a & 15, b & 15, a >> 4, b >> 4

    return chunks


def eights256(word):
    """(`quants`, `chunks`) of a type from `word(p, r, k)`: weights 8 k .. of run r, bytes of an int64."""

    @inline
    def quants(p, j):
        r = 2 * j
        return from_words((
            word(p, r, 0), word(p, r, 1), word(p, r, 2), word(p, r, 3),
            word(p, r + 1, 0), word(p, r + 1, 1), word(p, r + 1, 2), word(p, r + 1, 3),
        ))  # fmt: skip

    @inline
    def chunk(p, k):
        return from_words((
            word(p, 0, k), word(p, 1, k), word(p, 2, k), word(p, 3, k),
            word(p, 4, k), word(p, 5, k), word(p, 6, k), word(p, 7, k),
        ))  # fmt: skip

    return quants, inline(lambda p: (chunk(p, 0), chunk(p, 1), chunk(p, 2), chunk(p, 3)))


def points256(point, mask, offset):
    """The same of a type of signed points: eight bytes of `point`, negated where `mask` is -1, moved by offset."""
    points, point_chunks = eights256(point)
    masks, mask_chunks = eights256(mask)

    @inline
    def signed(v, m):
        return ((v ^ m) - m) + offset

    @inline
    def quants(p, j):
        return signed(points(p, j), masks(p, j))

    @inline
    def chunks(p):
        a, b, c, d = point_chunks(p)
        e, f, g, h = mask_chunks(p)
        return signed(a, e), signed(b, f), signed(c, g), signed(d, h)

    return quants, chunks


@inline
def nibbles16(p):
    """Eight bytes at p -> sixteen nibbles as u8, low ones first."""
    v = u8x8(i64_at(p))
    return _interleaved(v & 15, v >> 4)


def fifth_bits(block_bytes, start):
    """`chunks` of 16 or 0, from the 32 bits at byte `start` of each of eight blocks."""
    words8 = strided("u32", 8, block_bytes)
    c0, c1, c2, c3 = (pick(*[4 * r + c for r in range(8)]) for c in range(4))
    sixteen = spread_bits(16)

    @inline
    def chunks(p):
        h = _bytes32(words8(p + start))
        return sixteen(c0(h)), sixteen(c1(h)), sixteen(c2(h)), sixteen(c3(h))

    return chunks


def scales32(block_bytes, has_min):
    """`scales256` of a type with 32 weights a block, half d first, half m (added, not subtracted) second."""
    if not has_min:
        heads8 = strided("u16", 8, block_bytes)

        @inline
        def scales(p):
            d = half_to_f32(heads8(p))
            return d, d

        return scales
    pairs8, halves = strided("u32", 8, block_bytes), bitcast("u16", 16)
    even, odd = pick(*range(0, 16, 2)), pick(*range(1, 16, 2))

    @inline
    def scales_mins(p):
        heads = half_to_f32(halves(pairs8(p)))
        return even(heads), full8(0.0) - odd(heads)

    return scales_mins
