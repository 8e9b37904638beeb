"""Models whose tensors are of many types at once, against the same weights widened to F32."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import edgert
from builder import load_recipe, tensors, write
from quant_blocks import dequantize, random_weights

DATA = Path(__file__).parent / "data" / "archs"
FAST_NMSE = 2e-3
MIXES = {
    "k quants": ["Q6_K", "Q4_K", "Q5_K", "Q3_K", "Q2_K", "Q8_0"],
    "tables": ["IQ4_XS", "IQ4_NL", "MXFP4", "NVFP4", "TQ2_0", "TQ1_0"],
    "grids": ["IQ3_S", "Q4_K", "IQ2_XXS", "IQ2_S", "IQ1_S", "Q5_0"],
}


@pytest.mark.parametrize("mix", MIXES)
def test_types_mixed_in_one_model(mix: str, tmp_path: Path) -> None:
    """Each matrix is of another type than the one before, embeddings too; norms are F16 and BF16 in turn."""
    recipe = load_recipe(DATA / "llama.json")
    arrays, packed, kinds = dict(tensors(recipe)), {}, {}
    for i, name in enumerate(n for n in arrays if n.endswith("_norm.weight")):
        kinds[name] = gguf.GGMLQuantizationType[("F16", "BF16")[i % 2]]
        packed[name] = gguf.quants.quantize(arrays[name].astype(np.float32), kinds[name])
        arrays[name] = gguf.quants.dequantize(packed[name], kinds[name])
    # Random blocks would make attention hang on single keys: the matrices of queries and keys are left as they are.
    matrices = [n for n in arrays if arrays[n].ndim == 2 and "attn_q" not in n and "attn_k" not in n]
    for i, name in enumerate(matrices):
        kind = MIXES[mix][i % len(MIXES[mix])]
        kinds[name] = gguf.GGMLQuantizationType[kind]
        packed[name] = random_weights(kind, *arrays[name].shape, seed=i)
        arrays[name] = dequantize(kind, packed[name])
    wide = write(recipe["meta"], arrays, tmp_path / "wide.gguf")
    mixed = write(recipe["meta"], arrays | packed, tmp_path / "mixed.gguf", kinds)
    with np.load(DATA / "llama.npz") as data:
        tokens = data["tokens"].tolist()
    with edgert.load(wide, precision="exact") as model:
        expected = model.logits(tokens)
    with edgert.load(mixed) as model:
        for path in ("prompt", "decode"):
            error = np.sum((model.logits(tokens, path=path) - expected) ** 2.0) / np.sum(expected**2.0)
            assert error <= FAST_NMSE, path
