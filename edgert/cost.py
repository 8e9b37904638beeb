"""What a token costs: bytes read and operations done."""

from __future__ import annotations

import math

from . import kv
from .runtime import Runtime


def bytes_per_token(runtime: Runtime, depth: int) -> int:
    """Bytes of weights and KV cache that generating one token reads at a context of `depth` tokens."""
    plan = runtime.plans["decode"]
    weights = sum(op.weight_bytes for op in plan.ops)
    if plan.experts:
        shared = sum(op.weight_bytes for op in plan.ops if "_exps." not in op.label)
        weights = shared + (weights - shared) * plan.experts_used // plan.experts
    return weights + depth * kv.token_bytes(plan.cache, runtime.kv_type)


def flop_per_token(runtime: Runtime, depth: int) -> int:
    """Floating-point operations of one token at a context of `depth` tokens: matmuls and attention."""
    plan, tensors = runtime.plans["decode"], runtime.gguf.tensors
    total = 0
    for op in plan.ops:
        if op.weight_bytes:
            n = math.prod(tensors[op.label].shape) * op.weight_bytes // tensors[op.label].nbytes
            total += 2 * n * plan.experts_used // plan.experts if "_exps." in op.label else 2 * n
    heads = runtime.config.n_head
    return total + sum(2 * depth * heads * (layer.d_k + layer.d_v) for layer in plan.cache)
