"""What a model computes besides answers: logits, likeliest continuations, embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import kv
from .answering import Answering, checked
from .beam import Beam, BeamWork
from .engine import Engine
from .errors import ContextLengthError, EdgertError
from .formats.tokenizer import Tokenizer
from .runtime import Runtime
from .samplers import Top
from .work import EmbedWork, LogitsWork

F32 = npt.NDArray[np.float32]


class ModelNumbers:
    """The part of `Model` whose results are numbers."""

    _runtime: Runtime
    _engine: Engine
    _answering: Answering
    tokenizer: Tokenizer
    n_vocab: int
    n_ctx: int

    def logits(self, ids: Sequence[int], *, chunk: int | None = None, path: str = "prompt") -> F32:
        """float32 (len(ids), n_vocab): the logits after each token.

        chunk: tokens fed at a time. path: the kernels of "prompt" or of generated tokens ("decode").
        """
        if path not in ("prompt", "decode"):
            raise EdgertError(f"path {path!r} is neither 'prompt' nor 'decode'")
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise EdgertError(f"chunk: {chunk!r} is not a positive whole number")
        tokens = checked(ids, self.n_vocab)
        if len(tokens) > self.n_ctx:
            raise ContextLengthError(f"{len(tokens)} tokens do not fit in the context of {self.n_ctx}")
        out = np.empty((len(tokens), self.n_vocab), np.float32)
        if tokens:
            self._engine.run([LogitsWork(tokens, out, path, chunk)])
        else:
            self._engine.check_open()
        return out

    def beam_search(self, prompt: str | Sequence[int], *, beams: int = 4, max_tokens: int = 64,
                    length_penalty: float = 1.0, ignore_eos: bool = False) -> list[Beam]:  # fmt: skip
        """The `beams` (2 to 16) likeliest continuations that a beam search finds, the best score first.

        It ends when so many have ended by themselves, or at max_tokens. Scores are log-probabilities divided by
        length ** length_penalty. EdgertError if all beams to their full length do not fit in the KV cache.
        """
        for name, value, most in (("beams", beams, 16), ("max_tokens", max_tokens, self.n_ctx)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 + (name == "beams") <= value <= most:
                raise EdgertError(f"{name}: {value!r} is not a whole number from {1 + (name == 'beams')} to {most}")
        ids = self._answering.ids(prompt)
        self._answering.fits(ids, max_tokens)
        self._engine.check_open()
        pages = beams * (-(-(len(ids) + max_tokens) // kv.PAGE) + 1)
        if pages > min(group.n_pages for group in self._runtime.pool.groups):
            raise EdgertError(f"{beams} beams of {len(ids) + max_tokens} tokens do not fit in the KV cache")
        ends = frozenset() if ignore_eos else self.tokenizer.eog_ids
        work = BeamWork(ids, beams, max_tokens, length_penalty, ends, Top(self._runtime.kernels["sample.top"]))
        self._engine.run([work])
        return [
            Beam(self.tokenizer.decode(found), found, logprob, work.score(logprob, len(found) + ended),
                 "stop" if ended else "length") for found, logprob, ended in work.best()
        ]  # fmt: skip

    def embed(self, texts: str | Sequence[str | Sequence[int]], *, pooling: str = "mean",
              normalize: bool = True) -> F32 | list[F32]:  # fmt: skip
        """float32 (n, n_embd): what the model makes of each text (or token ids), from its final hidden states.

        pooling: the "mean" of all tokens, the first ("cls"), the "last", or "none": a list of (tokens, n_embd).
        normalize: to length 1.
        """
        if pooling not in ("mean", "cls", "last", "none"):
            raise EdgertError(f"pooling {pooling!r} is not one of mean, cls, last, none")
        self._engine.check_open()
        given = [texts] if isinstance(texts, str) else texts
        works = [EmbedWork(self._answering.ids(text), pooling) for text in given]
        for work in works:
            self._answering.fits(work.prompt, 0)
        self._engine.run(works)
        rows = [work.result() for work in works]
        if normalize:
            rows = [row / np.maximum(np.linalg.norm(row, axis=-1, keepdims=True), 1e-12) for row in rows]
        if pooling == "none":
            return rows
        return np.stack(rows) if rows else np.empty((0, self._runtime.config.n_embd), np.float32)
