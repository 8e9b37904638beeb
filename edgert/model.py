"""The public model: tokens, logits, answers, conversations."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from . import chat, kv, logprobs
from .archs import read_config
from .chat import ChatCompletion, ChatStream
from .chat_parser import Reasoning
from .chat_traits import Traits
from .config import check_vocabulary
from .constrain import FORMS, Constrainer
from .errors import ContextLengthError, EdgertError
from .formats.chat_template import ChatTemplate, chat_template_from_metadata
from .formats.gguf import Gguf
from .formats.tokenizer import Tokenizer, load_tokenizer
from .generation import Answer, Completion, Stream, run_together
from .runtime import Progress, Runtime
from .sampling import Sampler, Settings

F32 = npt.NDArray[np.float32]
KEPT = 4  # idle sequences kept for prefix reuse


class Model:
    """A loaded model. Safe to call from several threads: their steps take turns. Use `edgert.load`.

    tokenizer      the file's tokenizer
    chat_template  the file's chat template, None if it has none (`chat` then uses a usual one)
    n_vocab, n_ctx, threads, precision
    """

    def __init__(self, path: Path, *, threads: int | None, n_ctx: int | None, precision: str, kv_type: str,
                 progress: Progress | None) -> None:  # fmt: skip
        self.path = path
        gguf = Gguf.open(path)
        try:
            self.tokenizer: Tokenizer = load_tokenizer(gguf.metadata)
            config = read_config(gguf)
            check_vocabulary(gguf, config, self.tokenizer)
            self._runtime = Runtime(config, threads=threads, n_ctx=n_ctx, precision=precision, kv_type=kv_type,
                                    progress=progress)  # fmt: skip
            self._fallback = chat_template_from_metadata(gguf.metadata, self.tokenizer)
        except BaseException:
            gguf.close()
            raise
        self.chat_template: ChatTemplate | None = self._fallback if self._fallback.name == "file" else None
        self._traits = Traits(self._fallback, self.tokenizer.vocab.token_to_id)
        self.metadata: Mapping[str, Any] = gguf.metadata
        self.n_vocab, self.n_ctx = self._runtime.config.n_vocab, self._runtime.n_ctx
        self.threads, self.precision = self._runtime.threads, precision
        self._constrainer = Constrainer(self.tokenizer, self.n_vocab)
        self._lock = threading.RLock()  # for one step
        self._turn = threading.RLock()  # for one whole answer: calls from several threads queue
        self._idle: list[kv.Sequence] = []
        self._closed = False

    # ---- tokens ----

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids. add_special: with BOS/EOS as the model wants; parse_special: `<|...|>` as special tokens."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(self._checked(ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self.tokenizer.token_bytes(self._checked([token])[0])

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if isinstance(ids, str | bytes):
            raise EdgertError("token ids must be a sequence of whole numbers, not text")
        try:
            out = [operator.index(i) for i in ids]
        except TypeError:
            raise EdgertError("token ids must be a sequence of whole numbers") from None
        for i in out:
            if not 0 <= i < self.n_vocab:
                raise EdgertError(f"token {i} is not in the vocabulary of {self.n_vocab}")
        return out

    # ---- logits and answers ----

    def logits(self, ids: Sequence[int], *, chunk: int | None = None, path: str = "prompt") -> F32:
        """float32 (len(ids), n_vocab): the logits after each token.

        chunk: tokens fed at a time. path: the kernels of "prompt" or of generated tokens ("decode").
        """
        if path not in ("prompt", "decode"):
            raise EdgertError(f"path {path!r} is neither 'prompt' nor 'decode'")
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise EdgertError(f"chunk: {chunk!r} is not a positive whole number")
        tokens = self._checked(ids)
        if len(tokens) > self.n_ctx:
            raise ContextLengthError(f"{len(tokens)} tokens do not fit in the context of {self.n_ctx}")
        out = np.empty((len(tokens), self.n_vocab), np.float32)
        size = min(chunk or self._runtime.max_rows(path), self._runtime.max_rows(path))
        with self._lock:
            self._open()
            self._make_room(-(-len(tokens) // kv.PAGE))
            sequence = kv.Sequence(self._runtime.pool, self.n_ctx)
            try:
                for start in range(0, len(tokens), size):
                    part = tokens[start : start + size]
                    self._runtime.step(path, [(sequence, part)], range(len(part)), out[start : start + len(part)])
            finally:
                sequence.truncate(0)
        return out

    def generate(self, prompt: str | Sequence[int], **settings: Any) -> Completion:
        """Continue a prompt (text, or token ids) and return the whole answer; see `stream` for the settings."""
        stream = self.stream(prompt, **settings)
        with self._turn:
            try:
                for _ in stream:
                    pass
            finally:
                stream.close()
        return stream.completion

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> Stream:
        """Pieces of the answer as they come.

        max_tokens: at most (None: up to the end of the context). stop: strings that end the answer, not shown.
        ignore_eos: go on after end-of-turn tokens. sampling: fields of `edgert.Settings` (temperature, seed, ...).
        logprobs, prompt_logprobs: report log-probabilities of tokens, each with so many alternatives (0: none).
        json_schema, regex, choices, grammar, response_format: the form that the answer must have, see
        `edgert.constrain.Constrainer.constraint`. An answer cut short by max_tokens has it only so far.
        shown: control tokens whose text is part of the answer's text (else none is).
        ContextLengthError if prompt and max_tokens do not fit in the context.
        """
        return Stream(self, self._answer(prompt, max_tokens, stop, ignore_eos, sampling))

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> list[Completion]:
        """Answers to several prompts, generated together: each step reads the weights once for all of them.

        Settings as for `stream`; every answer is the one it would be alone.
        """
        answers = [self._answer(prompt, max_tokens, stop, ignore_eos, sampling) for prompt in prompts]
        with self._turn:
            run_together(self, answers, min(len(answers), self._runtime.max_rows("decode")))
        return [answer.completion() for answer in answers]

    def _answer(self, prompt: str | Sequence[int], max_tokens: int | None, stop: str | Sequence[str] | None,
                ignore_eos: bool, sampling: Mapping[str, Any]) -> Answer:  # fmt: skip
        self._open()
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self._checked(prompt)
        if not ids:
            raise EdgertError("the prompt has no tokens")
        if len(ids) >= self.n_ctx:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, the context only {self.n_ctx}; no room to answer"
            )
        room = self.n_ctx - len(ids)
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            raise EdgertError(f"max_tokens: {max_tokens!r} is not a positive whole number")
        if max_tokens is not None and max_tokens > room:
            raise ContextLengthError(
                f"{len(ids)} prompt tokens and {max_tokens} new ones do not fit in the context of {self.n_ctx}"
            )
        stops = [stop] if isinstance(stop, str) else stop or ()
        if not isinstance(stops, Sequence) or not all(isinstance(s, str) and s for s in stops):
            raise EdgertError("stop: every stop string must be text that is not empty")
        given = dict(sampling)
        shown = self._checked(given.pop("shown", ()))
        alternatives = [logprobs.check(name, given.pop(name, None)) for name in ("logprobs", "prompt_logprobs")]
        forms = {name: given.pop(name) for name in FORMS if name in given}
        sampler = Sampler(_settings(given), self.n_vocab, self._runtime.kernels["sample.top"], self.tokenizer)
        constraint = self._constrainer.constraint(**forms)
        return Answer(self.tokenizer, ids, max_tokens or room, sampler, stops, ignore_eos, constraint, alternatives[0],
                      alternatives[1], shown)  # fmt: skip

    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, tools: Any = None,
             tool_choice: Any = "auto", reasoning: Reasoning = "split",
             template_args: Mapping[str, Any] | None = None, **settings: Any) -> ChatCompletion: ...  # fmt: skip
    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], tools: Any = None,
             tool_choice: Any = "auto", reasoning: Reasoning = "split",
             template_args: Mapping[str, Any] | None = None, **settings: Any) -> ChatStream: ...  # fmt: skip
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, tools: Any = None,
             tool_choice: Any = "auto", reasoning: Reasoning = "split",
             template_args: Mapping[str, Any] | None = None,
             **settings: Any) -> ChatCompletion | ChatStream:  # fmt: skip
        """Answer a conversation of messages as OpenAI's API has them; settings as for `stream`.

        tools, tool_choice: as in OpenAI's API ("auto", "none", "required", or one function).
        reasoning: "split" from the content, "keep" in it, or "drop". template_args: variables of the chat template.
        EdgertError for messages or tools that are not as they should be, FormatError if the template refuses them.
        """
        formed = any(settings.get(form) is not None for form in FORMS)
        turn = chat.turn(self._traits, messages, tools=tools, tool_choice=tool_choice, reasoning=reasoning,
                         template_args=template_args, formed=formed)  # fmt: skip
        starts = bool(self._fallback.bos_token) and turn.text.startswith(self._fallback.bos_token)
        ids = self.tokenizer.encode(turn.text, add_special=not starts, parse_special=True)
        settings |= {**turn.settings, "shown": chat.shown(turn.marks, self.tokenizer.vocab.token_to_id)}
        if stream:
            return ChatStream(self.stream(ids, **settings), turn.parser)
        return chat.parsed(self.generate(ids, **settings), turn.parser)

    # ---- steps, for generation ----

    @contextmanager
    def lease(self, answer: Answer) -> Iterator[kv.Sequence]:
        """A sequence that holds as much of the answer's prompt as is still cached (never all of it).

        It is kept for reuse after a good end and dropped after an interruption.
        """
        prompt = answer.prompt
        with self._lock:
            self._open()
            idle = self._idle if answer.scores is None else []  # what is cached has no logits
            best = max(idle, key=lambda s: s.common(prompt), default=None)
            if best is not None and (n := min(best.common(prompt), len(prompt) - 1)) > 0:
                self._idle.remove(best)
                best.truncate(n)
            else:
                best = kv.Sequence(self._runtime.pool, self.n_ctx)
            answer.cached = len(best.tokens)
        try:
            yield best
        except GeneratorExit:
            self._keep(best)
            raise
        except BaseException:
            with self._lock:
                best.truncate(0)
            raise
        self._keep(best)

    def _keep(self, sequence: kv.Sequence) -> None:
        with self._lock:
            if self._closed:
                return
            sequence.truncate(sequence.n_prompt)
            self._idle.append(sequence)
            while len(self._idle) > KEPT:
                self._idle.pop(0).truncate(0)

    def fits(self, answers: Sequence[Answer]) -> bool:
        """Whether the cache can hold these answers to their full length at once (one always fits)."""
        pages = sum(-(-(len(a.prompt) + a.max_tokens) // kv.PAGE) for a in answers)
        return len(answers) == 1 or pages <= self._runtime.pool.n_pages

    def feed_prompt(self, sequence: kv.Sequence, answer: Answer, logits: F32) -> None:
        """Run what the sequence lacks of an answer's prompt; logits (1, n_vocab) after its last token."""
        prompt, scores = answer.prompt, answer.scores
        size = self._runtime.max_rows("prompt")
        if scores is not None:
            size = min(size, logprobs.ROWS)
        rows = np.empty((size, self.n_vocab), np.float32) if scores is not None else logits
        for start in range(len(sequence.tokens), len(prompt), size):
            part = prompt[start : start + size]
            last = [len(part) - 1] if start + len(part) == len(prompt) else []
            want = range(len(part)) if scores is not None else last
            with self._lock:
                self._open()
                self._make_room(sequence.pages_for(len(part)))
                self._runtime.step("prompt", [(sequence, part)], want, rows[: len(want)])
            if scores is not None:
                scores.add(rows[: len(part)])
                if last:
                    logits[0] = rows[last[0]]

    def feed_tokens(self, rows: Sequence[tuple[kv.Sequence, int]], logits: F32) -> None:
        """Run one generated token of each sequence; logits (len(rows), n_vocab) after them."""
        with self._lock:
            self._open()
            self._make_room(sum(s.pages_for(1) for s, _ in rows))
            self._runtime.step("decode", [(s, [token]) for s, token in rows], range(len(rows)), logits)

    def _make_room(self, n_pages: int) -> None:
        """Drop idle sequences until n_pages are free."""
        while self._idle and self._runtime.pool.free < n_pages:
            self._idle.pop(0).truncate(0)

    # ---- the rest ----

    def bytes_per_token(self, depth: int = 0) -> int:
        """Bytes of weights and KV cache that generating one token reads at a context of `depth` tokens."""
        plan = self._runtime.plans["decode"]
        weights = sum(op.weight_bytes for op in plan.ops)
        if plan.experts:
            shared = sum(op.weight_bytes for op in plan.ops if "_exps." not in op.label)
            weights = shared + (weights - shared) * plan.experts_used // plan.experts
        return weights + depth * kv.token_bytes(plan.cache, self._runtime.kv_type)

    def flop_per_token(self, depth: int = 0) -> int:
        """Floating-point operations of one token at a context of `depth` tokens: matmuls and attention."""
        plan, tensors = self._runtime.plans["decode"], self._runtime.gguf.tensors
        total = 0
        for op in plan.ops:
            if op.weight_bytes:
                n = math.prod(tensors[op.label].shape) * op.weight_bytes // tensors[op.label].nbytes
                total += 2 * n * plan.experts_used // plan.experts if "_exps." in op.label else 2 * n
        heads = self._runtime.config.n_head
        return total + sum(2 * depth * heads * (layer.d_k + layer.d_v) for layer in plan.cache)

    def describe_plan(self) -> str:
        """The programs that this model runs, an operation a line."""
        self._open()
        return self._runtime.describe()

    def _open(self) -> None:
        if self._closed:
            raise EdgertError("the model is closed")

    def close(self) -> None:
        """End the threads and give the memory back. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._idle.clear()
                self._constrainer.close()
                self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _settings(given: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**{k: v for k, v in given.items() if v is not None})
    except TypeError:
        unknown = sorted(set(given) - set(Settings.__dataclass_fields__))
        raise EdgertError(f"unknown settings: {', '.join(unknown)}") from None
