"""Which type each tensor gets under a name such as Q4_K_M: the rules that llama.cpp's quantiser follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import gguf

SUPER = 256  # values in a block of the K, IQ and TQ types
# What llama.cpp takes where a row is not a multiple of 256.
FALLBACK = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
            "TQ1_0": "Q4_0", "TQ2_0": "Q4_0"}  # fmt: skip
# mix: (type of most tensors, types of the others)
MIXES: dict[str, tuple[str, Mapping[str, str]]] = {
    "Q2_K": ("Q2_K", {"attn_v": "Q4_K", "ffn_down": "Q3_K", "attn_output": "Q3_K"}),
    "Q3_K_S": ("Q3_K", {}),
    "Q3_K_M": ("Q3_K", {"attn_v": "early", "ffn_down": "early", "attn_output": "Q4_K"}),
    "Q3_K_L": ("Q3_K", {"attn_v": "Q5_K", "ffn_down": "Q5_K", "attn_output": "Q5_K"}),
    "Q4_K_S": ("Q4_K", {"attn_v": "first four", "ffn_down": "first eighth"}),
    "Q4_K_M": ("Q4_K", {"attn_v": "more", "ffn_down": "more"}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", {"attn_v": "more", "ffn_down": "more"}),
}
# Rules that depend on the layer: (layer, layers, tensor, usual type) -> type
RULES: dict[str, Callable[[int, int, str, str], str]] = {
    "more": lambda i, n, part, usual: "Q6_K" if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else usual,
    "first four": lambda i, n, part, usual: "Q5_K" if i < 4 else usual,
    "first eighth": lambda i, n, part, usual: "Q5_K" if i < n // 8 else usual,
    "early": lambda i, n, part, usual: "Q5_K" if i < (2 if part == "attn_v" else n // 16) else "Q4_K",
}
UNQUANTISED = ("F32", "F16", "BF16")


def names() -> list[str]:
    """Every mix and every type that a model can be made in."""
    return sorted({*MIXES, *types()})


def types() -> list[str]:
    """Types that weights can have: those that the `gguf` package can turn into floats."""
    from quant_blocks import ORACLE_TYPES

    return list(ORACLE_TYPES)


class Mix:
    """A mix by name, a type by name, and exceptions: "Q4_K_M", "Q8_0", "Q4_0,attn_v=Q8_0,output=F16".

    pure: no rules, all matrices in one type. ValueError names what is unknown.
    """

    def __init__(self, text: str, *, pure: bool = False) -> None:
        name, *exceptions = text.split(",")
        pairs = [part.partition("=") for part in exceptions]
        self.given = {part: kind for part, _, kind in pairs}
        self.usual, self.special = MIXES.get(name, (name, {}))
        if pure:
            self.special = {}
        self.plain_head = pure or self.usual in (*UNQUANTISED, "Q8_0")
        for kind in (self.usual, *self.given.values()):
            if kind not in types():
                raise ValueError(f"{text!r}: {kind!r} is neither a type nor a mix; known are {', '.join(names())}")

    def type_of(self, name: str, shape: tuple[int, ...], layers: int, *, tied: bool) -> str:
        """The type of a tensor: name as in the file, shape in GGUF order."""
        if len(shape) < 2 or name.endswith("ffn_gate_inp.weight"):
            return "F32"
        part = name.split(".")[-2].removesuffix("_exps")
        kind = self._by_rule(part, int(name.split(".")[1]) if name.startswith("blk.") else 0, layers, tied)
        block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
        if shape[0] % block == 0:
            return kind
        if block == SUPER:
            return FALLBACK.get(kind, "IQ4_NL")
        raise ValueError(f"{name}: rows of {shape[0]} values cannot be {kind}, which has blocks of {block}")

    def _by_rule(self, part: str, layer: int, layers: int, tied: bool) -> str:
        if part in self.given:
            return self.given[part]
        if part == ("token_embd" if tied else "output") and not self.plain_head:
            return "Q6_K"
        wanted = self.special.get(part, self.usual)
        return RULES[wanted](layer, layers, part, self.usual) if wanted in RULES else wanted
