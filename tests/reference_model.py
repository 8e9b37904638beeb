"""Transformers in NumPy and float64, written from their papers: the reference for variants that no golden covers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Arrays = dict[str, F64]


def rms(x: F64, weight: F64, eps: float) -> F64:
    """RMSNorm over the last axis (Zhang & Sennrich 2019)."""
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def layer(x: F64, weight: F64, eps: float, bias: F64 | float = 0.0) -> F64:
    """LayerNorm over the last axis (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * weight + bias


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def gelu(x: F64) -> F64:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rope(x: F64, frequencies: F64, neox: bool, magnitude: float = 1.0) -> F64:
    """x (tokens, heads, d), its first 2 * len(frequencies) turned by position * frequency (Su et al. 2021)."""
    half, out = len(frequencies), x.copy()
    angles = np.arange(len(x))[:, None] * frequencies
    first, second = (slice(0, half), slice(half, 2 * half)) if neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    turned = (x[..., first] + 1j * x[..., second]) * (magnitude * np.exp(1j * angles))[:, None]
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def plain(n_rot: int, base: float = 10000.0) -> F64:
    """Frequencies without any scaling."""
    return np.asarray(base ** (-np.arange(0, n_rot, 2) / n_rot), np.float64)


def yarn(n_rot: int, factor: float, original: int, base: float = 10000.0) -> F64:
    """Frequencies of Peng et al. 2023 with beta 32 and 1."""

    def dimension(rotations: float) -> float:
        return n_rot * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(dimension(32))), min(n_rot - 1, math.ceil(dimension(1)))
    ramp = 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    return plain(n_rot, base) * (ramp + (1 - ramp) / factor)


def attention(q: F64, k: F64, v: F64, scale: float, window: int = 0) -> F64:
    """q (t, heads, d), k and v (t, kv heads, ...) -> (t, heads * d_v), causal; window: keys seen, 0 for all."""
    group = q.shape[1] // k.shape[1]
    scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1)) * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    scores[:, (distance < 0) | (distance >= (window or len(q)))] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    out: F64 = np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1)).reshape(len(q), -1)
    return out


@dataclass
class Model:
    """A dense decoder. `turn(x, layer)` places queries and keys (tokens, heads, d); norms take (x, name)."""

    arrays: Arrays
    n_layer: int
    heads: int
    kv_heads: int
    norm: Callable[[F64, str], F64]
    turn: Callable[[F64, int], F64]
    unit: Callable[[F64], F64] = silu
    qk_norm: Callable[[F64, str], F64] = lambda x, name: x
    pre_norm: bool = True
    post_norm: bool = False
    beside: bool = False  # attention and feed-forward take the same normed rows
    windows: list[int] = field(default_factory=list)
    temperature: Callable[[F64], F64] = lambda q: q
    positions: bool = False
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)  # embeddings, residuals, logits
    score_scale: float = 0.0

    def linear(self, x: F64, name: str) -> F64:
        return x @ self.arrays[f"{name}.weight"].T + self.arrays.get(f"{name}.bias", 0.0)

    def attend(self, h: F64, i: int) -> F64:
        p, n = f"blk.{i}.", len(h)
        if f"{p}attn_qkv.weight" in self.arrays:
            both = self.linear(h, p + "attn_qkv")
            d = both.shape[1] // (self.heads + 2 * self.kv_heads)
            q, k, v = np.split(both, [self.heads * d, (self.heads + self.kv_heads) * d], axis=1)
        else:
            q, k, v = (self.linear(h, f"{p}attn_{x}") for x in "qkv")
        q, k = self.qk_norm(q, p + "attn_q_norm"), self.qk_norm(k, p + "attn_k_norm")
        q, k, v = q.reshape(n, self.heads, -1), k.reshape(n, self.kv_heads, -1), v.reshape(n, self.kv_heads, -1)
        q = self.temperature(self.turn(q, i))
        scale = self.score_scale or 1 / math.sqrt(q.shape[2])
        a = attention(q, self.turn(k, i), v, scale, self.windows[i] if self.windows else 0)
        return self.linear(a, p + "attn_output")

    def feed_forward(self, h: F64, i: int) -> F64:
        p = f"blk.{i}."
        up = self.linear(h, p + "ffn_up")
        if f"{p}ffn_gate.weight" in self.arrays:
            up = self.unit(self.linear(h, p + "ffn_gate")) * up
        elif up.shape[1] == 2 * self.arrays[f"{p}ffn_down.weight"].shape[1]:
            up = self.unit(up[:, : up.shape[1] // 2]) * up[:, up.shape[1] // 2 :]
        else:
            up = self.unit(up)
        return self.linear(up, p + "ffn_down")

    def logits(self, tokens: list[int]) -> F64:
        """(tokens, n_vocab)"""
        embedding, residual, last = self.scales
        x = self.arrays["token_embd.weight"][tokens] * embedding
        if self.positions:
            x = x + self.arrays["position_embd.weight"][: len(tokens)]
        for i in range(self.n_layer):
            p = f"blk.{i}."
            first = self.norm(x, p + "attn_norm") if self.pre_norm else x
            a = self.attend(first, i)
            x = x + residual * (self.norm(a, p + "post_attention_norm") if self.post_norm else a)
            h = first if self.beside else self.norm(x, p + "ffn_norm") if self.pre_norm else x
            f = self.feed_forward(h, i)
            x = x + residual * (self.norm(f, p + "post_ffw_norm") if self.post_norm else f)
        head = self.arrays.get("output.weight", self.arrays["token_embd.weight"])
        result: F64 = self.norm(x, "output_norm") @ head.T * last
        return result


def widened(arrays: dict[str, npt.NDArray[Any]]) -> Arrays:
    return {name: values.astype(np.float64) for name, values in arrays.items()}
