"""Hyper-parameters of a model, read from GGUF metadata with llama.cpp's defaults for what is absent."""

from __future__ import annotations

from dataclasses import dataclass

from .formats.errors import FormatError
from .formats.gguf import Gguf
from .formats.tokenizer import Tokenizer

MAX_LAYERS, MAX_HEADS, MAX_EXPERTS = 1024, 4096, 4096
RECURRENT = ("mamba", "mamba2", "lfm2", "falcon-h1", "granitehybrid")  # may have layers without attention

# Keys that change the result, and the values with which they do not: what an architecture does not read must have one.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_gating_func": (0, 1),
    "final_logit_softcapping": (0.0,),
    "hidden_activation": (),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": (),
    "router_logit_softcapping": (0.0,),
    "swiglu_clamp_exp": (),
    "swiglu_clamp_shexp": (),
}


@dataclass(frozen=True)
class RopeScaling:
    """How positions map to angles: see rope.inverse_frequencies."""

    kind: str  # "none", "linear", "yarn" or "longrope"
    factor: float
    original_context: int
    attn_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    log_multiplier: float = 0.0  # YaRN's "mscale_all_dim"


class Config:
    """The keys every decoder has, and typed access to the others (`c.real("logit_scale", 1.0)`)."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        self.meta = gguf.metadata
        self._read: set[str] = set()
        self.arch = self.meta.get_str("general.architecture")
        self.n_layer = self.integer("block_count", at_least=1, at_most=MAX_LAYERS)
        self.n_embd = self.integer("embedding_length", at_least=1, at_most=1 << 20)
        self.n_ctx_train = self.integer("context_length", at_least=1, at_most=1 << 30)
        self.attends = [True] * self.n_layer  # which layers have attention
        self.n_head, self.n_head_kv = self._heads()
        if self.n_head % self.n_head_kv:
            raise self.error("attention.head_count_kv", f"{self.n_head_kv} does not divide {self.n_head} heads")
        default = self.n_embd // self.n_head if self.n_embd % self.n_head == 0 else None
        if not any(self.attends):
            self.d_k = self.d_v = self.n_rot = 0
        else:
            self._attention_sizes(default)
        self.rope_base = self.real("rope.freq_base", 10000.0)
        if self.rope_base <= 1:
            raise self.error("rope.freq_base", f"{self.rope_base} is not above 1")
        self.rope_scaling = self._rope_scaling()
        self.n_expert = self.integer("expert_count", 0, at_most=MAX_EXPERTS)
        self.n_expert_used = self.integer("expert_used_count", 0, at_most=MAX_EXPERTS)
        if self.n_expert_used > self.n_expert or (self.n_expert and not self.n_expert_used):
            raise self.error("expert_used_count", f"{self.n_expert_used} of {self.n_expert} experts makes no sense")
        self.n_vocab = self._n_vocab()

    def _n_vocab(self) -> int:
        info = self.gguf.tensors.get("token_embd.weight")
        if info is None:
            raise self.gguf.error("tensor token_embd.weight", "is missing")
        if len(info.shape) != 2 or info.shape[0] != self.n_embd:
            raise self.gguf.error("tensor token_embd.weight", f"has shape {info.shape}, must be ({self.n_embd}, vocab)")
        rows = info.shape[1]
        n = self.integer("vocab_size", rows, at_least=1)
        if n != rows:
            raise self.error("vocab_size", f"{n} differs from the {rows} rows of token_embd.weight")
        return rows

    def _attention_sizes(self, default: int | None) -> None:
        """default: values of a head where the file does not say."""
        self.d_k = self.integer("attention.key_length", default, at_least=1, at_most=1 << 14)
        self.d_v = self.integer("attention.value_length", default, at_least=1, at_most=1 << 14)
        if self.d_k % 2 or self.d_v % 16:
            raise self.error("attention.value_length", f"{self.d_k} and {self.d_v} are not multiples of 2 and 16")
        self.n_rot = self.integer("rope.dimension_count", self.d_k, at_least=0, at_most=1 << 14)
        if self.n_rot > self.d_k or self.n_rot % 2:
            raise self.error("rope.dimension_count", f"{self.n_rot} is odd or larger than the head's {self.d_k}")

    def _heads(self) -> tuple[int, int]:
        """Heads of queries and of keys, of the layers that have any.

        Files of recurrent models may give them layer by layer, 0 for layers without attention.
        """
        if self.arch not in RECURRENT:
            n = self.integer("attention.head_count", at_least=1, at_most=MAX_HEADS)
            return n, self.integer("attention.head_count_kv", n, at_least=1, at_most=MAX_HEADS)
        of_q = self._per_layer("attention.head_count")
        of_kv = self._per_layer("attention.head_count_kv") if self.has("attention.head_count_kv") else of_q
        self.attends = [bool(q and kv) for q, kv in zip(of_q, of_kv, strict=True)]
        found = {(q, kv) for q, kv in zip(of_q, of_kv, strict=True) if q and kv}
        if len(found) > 1 or any(n > MAX_HEADS for pair in found for n in pair):
            raise self.error("attention.head_count", f"layers with {sorted(found)} heads are not supported together")
        return found.pop() if found else (1, 1)

    def _per_layer(self, key: str) -> list[int]:
        return self.meta.get_per_layer(self._key(key), self.n_layer)

    def _rope_scaling(self) -> RopeScaling:
        kind = self.text("rope.scaling.type", "")
        factor = self.real("rope.scaling.factor", 0.0) or self.real("rope.scale_linear", 0.0)
        if factor < 0:
            raise self.error("rope.scaling.factor", f"{factor} is negative")
        if not kind:
            kind = "linear" if factor else "none"
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise self.error("rope.scaling.type", f"{kind!r} is not supported; known: none, linear, yarn, longrope")
        scaling = RopeScaling(
            kind=kind,
            factor=1.0 if kind == "none" else factor or 1.0,
            original_context=self.integer("rope.scaling.original_context_length", self.n_ctx_train, at_least=1),
            attn_factor=self.real("rope.scaling.attn_factor", 1.0),
            beta_fast=self.real("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.real("rope.scaling.yarn_beta_slow", 1.0),
            extrapolation=self.real("rope.scaling.yarn_ext_factor", 1.0),
            log_multiplier=self.real("rope.scaling.yarn_log_multiplier", 0.0),
        )
        if self.real("rope.scaling.yarn_attn_factor", 1.0) != 1:
            raise self.error("rope.scaling.yarn_attn_factor", "is not supported; only 1 is")
        if not 0 < scaling.beta_slow < scaling.beta_fast:
            raise self.error("rope.scaling.yarn_beta_slow", f"{scaling.beta_slow} is not below {scaling.beta_fast}")
        return scaling

    def n_ff(self, layer: int = 0) -> int:
        """Width of a layer's feed-forward."""
        n = self.meta.get_per_layer(self._key("feed_forward_length"), self.n_layer, at_least=1)[layer]
        if n > 1 << 24:
            raise self.error("feed_forward_length", f"{n} is more than {1 << 24}")
        return n

    def eps(self, key: str) -> float:
        """`layer_norm_rms_epsilon` or `layer_norm_epsilon`, which the architecture's norms need."""
        eps = self.real(f"attention.{key}")
        if eps < 0:
            raise self.error(f"attention.{key}", f"{eps} is negative")
        return eps

    def integer(self, key: str, default: int | None = None, *, at_least: int = 0, at_most: int = 2**31 - 1) -> int:
        return self.meta.get_int(self._key(key), default, at_least=at_least, at_most=at_most)

    def real(self, key: str, default: float | None = None) -> float:
        return self.meta.get_float(self._key(key), default)

    def factor(self, key: str, default: float = 1.0) -> float:
        """A number that something is multiplied with or divided by; 0 means 1, as in llama.cpp."""
        return self.real(key, default) or 1.0

    def text(self, key: str, default: str | None = None) -> str:
        return self.meta.get_str(self._key(key), default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self.meta.get_bool(self._key(key), default)

    def has(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.meta

    def _key(self, key: str) -> str:
        self._read.add(key)
        return f"{self.arch}.{key}"

    def check_all_read(self) -> None:
        """FormatError for a key that changes the result and that nothing has read."""
        for key, neutral in NEUTRAL.items():
            if key in self._read or not self.has(key):
                continue
            value = self.meta[f"{self.arch}.{key}"]
            if not isinstance(value, int | float | str) or value not in neutral:
                raise self.error(key, f"is not supported in {self.arch} models; results would be wrong")

    def error(self, key: str, problem: str) -> FormatError:
        return self.meta.error(f"{self.arch}.{key}", problem)

    def windows(self, period: int, default: int = 0) -> list[int]:
        """How many tokens each layer attends to, 0 for all: `attention.sliding_window` in all but every `period`-th.

        The file may name another period (0: windows everywhere) or the layers one by one.
        """
        window, everywhere = self.integer("attention.sliding_window", default), False
        key = f"{self.arch}.attention.sliding_window_pattern"
        if key in self.meta:
            value = self.meta[key]
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                period, everywhere = value, value == 0
            elif hasattr(value, "__len__") and len(value) == self.n_layer and not isinstance(value, str):
                return [window if v else 0 for v in value]
            else:
                raise self.error("attention.sliding_window_pattern", f"is not a period nor {self.n_layer} flags")
        return [window if everywhere or (period and i % period < period - 1) else 0 for i in range(self.n_layer)]


def check_vocabulary(gguf: Gguf, config: Config, tokenizer: Tokenizer) -> None:
    """FormatError if the embedding has rows without a token, or tokens without a row."""
    if tokenizer.model != "no_vocab" and tokenizer.n_vocab != config.n_vocab:
        raise gguf.metadata.error(
            "tokenizer.ggml.tokens",
            f"{tokenizer.n_vocab} tokens, but token_embd.weight has {config.n_vocab} rows",
        )
