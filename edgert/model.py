"""The public model: tokens, logits, answers, conversations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

from . import chat, cost, kv
from .answering import Answering, checked, priority, several
from .archs import read_config
from .chat import ChatCompletion
from .chat_parser import Reasoning
from .chat_request import ChatRequest, ChatStream
from .chat_traits import Traits
from .config import check_vocabulary
from .constrain import FORMS
from .engine import Engine
from .errors import EdgertError
from .formats.chat_template import ChatTemplate, chat_template_from_metadata
from .formats.gguf import Gguf
from .formats.tokenizer import Tokenizer, load_tokenizer
from .generation import Completion
from .model_files import ModelFiles
from .model_numbers import ModelNumbers
from .prefix_store import PrefixStore
from .request import Request
from .runtime import Progress, Runtime
from .scheduler import Stats
from .speculative import Drafter, DraftModel, Lookup
from .work import AnswerWork


class Model(ModelFiles, ModelNumbers):
    """A loaded model. Safe to call from any thread; what is asked for at the same time runs together.

    tokenizer      the file's tokenizer
    chat_template  the file's chat template, None if it has none (`chat` then uses a usual one)
    n_vocab, n_ctx, threads, precision
    """

    def __init__(self, path: Path, *, threads: int | None, n_ctx: int | None, precision: str, kv_type: str,
                 cache_tokens: int | None, preempt: str, max_waiting: int, prefix_cache: Path | None,
                 prefix_cache_bytes: int, progress: Progress | None) -> None:  # fmt: skip
        self.path = path
        gguf = Gguf.open(path)
        try:
            self.tokenizer: Tokenizer = load_tokenizer(gguf.metadata)
            config = read_config(gguf)
            check_vocabulary(gguf, config, self.tokenizer)
            self._runtime = Runtime(config, threads=threads, n_ctx=n_ctx, precision=precision, kv_type=kv_type,
                                    cache_tokens=cache_tokens, progress=progress)  # fmt: skip
            self._fallback = chat_template_from_metadata(gguf.metadata, self.tokenizer)
        except BaseException:
            gguf.close()
            raise
        self.chat_template: ChatTemplate | None = self._fallback if self._fallback.name == "file" else None
        self._traits = Traits(self._fallback, self.tokenizer.vocab.token_to_id)
        self.metadata: Mapping[str, Any] = gguf.metadata
        self.n_vocab, self.n_ctx = self._runtime.config.n_vocab, self._runtime.n_ctx
        self.threads, self.precision = self._runtime.threads, precision
        top = self._runtime.kernels["sample.top"]
        self._answering = Answering(self.tokenizer, self.n_vocab, self.n_ctx, top)
        store = self._store(prefix_cache, prefix_cache_bytes) if prefix_cache is not None else None
        self._engine = Engine(self._runtime, max_waiting, preempt, store)
        close = _closer(self._engine, self._answering, store)
        self._close = close
        weakref.finalize(self, close)

    # ---- tokens ----

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids. add_special: with BOS/EOS as the model wants; parse_special: `<|...|>` as special tokens."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(checked(ids, self.n_vocab))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self.tokenizer.token_bytes(checked([token], self.n_vocab)[0])

    # ---- logits and answers ----

    def submit(self, prompt: str | Sequence[int], **settings: Any) -> Request:
        """Ask for an answer and return at once; see `stream` for the settings, `Request` for what can be done with it.

        priority: of those that wait, the highest is answered first; whole numbers, 0 if not given.
        EngineBusy if as many as may wait are waiting already.
        """
        self._engine.check_open()
        work = self._work(prompt, settings)
        request = Request(work, self._engine.cancel, self)
        self._engine.submit(work)
        return request

    def _work(self, prompt: str | Sequence[int], settings: Mapping[str, Any]) -> AnswerWork:
        given = dict(settings)
        order, drafter = priority(given), self._drafter(given.pop("speculative", None))
        return AnswerWork(self._answering.answer(prompt, **given), order, drafter)

    def _drafter(self, how: str | Model | None) -> Drafter | None:
        if how is None:
            return None
        if self._runtime.pool.has_states:
            raise EdgertError(f"speculative: {self._runtime.config.arch} models cannot take guessed tokens back")
        if how == "lookup":
            return Lookup()
        if not isinstance(how, Model):
            raise EdgertError("speculative: give 'lookup' or a loaded model of the same vocabulary")
        if how.n_vocab != self.n_vocab or how.tokenizer.tokens != self.tokenizer.tokens:
            raise EdgertError("speculative: the draft model has another vocabulary")
        if how is self or how._engine.guesses or self._engine.is_asked:
            raise EdgertError("speculative: a draft model must be another one, and cannot have a draft model itself")
        how._engine.check_open()
        self._engine.guesses = how._engine.is_asked = True
        return DraftModel(how._engine, kv.Sequence(how._runtime.pool, how.n_ctx), how)

    def generate(self, prompt: str | Sequence[int], **settings: Any) -> Completion:
        """Continue a prompt (text, or token ids) and return the whole answer; see `stream` for the settings."""
        return self.submit(prompt, **settings).result()

    def stream(self, prompt: str | Sequence[int], **settings: Any) -> Request:
        """Pieces of the answer as they come. It goes on whether or not they are read, until it ends or is closed.

        max_tokens: at most (None: up to the end of the context). stop: strings that end the answer, not shown.
        ignore_eos: go on after end-of-turn tokens. Fields of `edgert.Settings` (temperature, seed, ...).
        logprobs, prompt_logprobs: report log-probabilities of tokens, each with so many alternatives (0: none).
        json_schema, regex, choices, grammar, response_format: the form that the answer must have, see
        `edgert.constrain.Constrainer.constraint`. An answer cut short by max_tokens has it only so far.
        speculative: "lookup" or a loaded model of the same vocabulary guesses tokens, which are checked several at a
        time: the same answer, sooner where the guesses are right.
        shown: control tokens whose text is part of the answer's text (else none is).
        context: what to do when it is full. "error" (the default): ContextLengthError. "shift": forget the oldest
        tokens of the prompt, and half of all whenever the answer fills it. "truncate_middle": leave out the middle of
        the prompt. The usage says how many were left out. A BOS token at the beginning stays.
        ContextLengthError if prompt and max_tokens do not fit in the context.
        """
        return self.submit(prompt, **settings)

    def generate_many(self, prompts: Sequence[str | Sequence[int]], **settings: Any) -> list[Completion]:
        """Answers to several prompts, generated together: each step reads the weights once for all of them.

        Settings as for `stream`; every answer is the one it would be alone.
        """
        self._engine.check_open()
        works = [self._work(prompt, settings) for prompt in prompts]
        self._engine.run(works)
        return [work.answer.completion() for work in works]

    def generate_n(self, prompt: str | Sequence[int], n: int, **settings: Any) -> list[Completion]:
        """Several answers to one prompt, which is read once and whose pages they share. The seeds count up."""
        requests = [self.submit(prompt, **given) for given in several(n, settings)]
        return [request.result() for request in requests]

    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, n: None = None,
             **settings: Any) -> ChatCompletion: ...  # fmt: skip
    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], n: None = None,
             **settings: Any) -> ChatStream: ...  # fmt: skip
    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, n: int,
             **settings: Any) -> list[ChatCompletion]: ...  # fmt: skip
    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, n: int | None = None,
             **settings: Any) -> ChatCompletion | ChatStream | list[ChatCompletion]:  # fmt: skip
        """Answer a conversation of messages as OpenAI's API has them; settings as for `submit_chat`.

        n: a list of so many answers, see `generate_n`.
        """
        if n is not None:
            if stream:
                raise EdgertError("n: several answers cannot be one stream; use submit_chat for each")
            requests = [self.submit_chat(messages, **given) for given in several(n, settings)]
            return [request.result() for request in requests]
        request = self.submit_chat(messages, **settings)
        return ChatStream(request) if stream else request.result()

    def submit_chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, tool_choice: Any = "auto",
                    reasoning: Reasoning = "split", template_args: Mapping[str, Any] | None = None,
                    **settings: Any) -> ChatRequest:  # fmt: skip
        """Ask for the answer to a conversation and return at once; its pieces are `edgert.chat_events`.

        tools, tool_choice: as in OpenAI's API ("auto", "none", "required", or one function).
        reasoning: "split" from the content, "keep" in it, or "drop". template_args: variables of the chat template.
        settings: as for `submit`.
        EdgertError for messages or tools that are not as they should be, FormatError if the template refuses them.
        """
        formed = any(settings.get(form) is not None for form in FORMS)
        turn = chat.turn(self._traits, messages, tools=tools, tool_choice=tool_choice, reasoning=reasoning,
                         template_args=template_args, formed=formed)  # fmt: skip
        ids = self._turn_ids(turn.text)
        settings |= {**turn.settings, "shown": chat.shown(turn.marks, self.tokenizer.vocab.token_to_id)}
        return ChatRequest(self.submit(ids, **settings), turn.parser)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, tool_choice: Any = "auto",
                    template_args: Mapping[str, Any] | None = None) -> tuple[str, list[int]]:  # fmt: skip
        """The text, and the token ids, of the prompt that `submit_chat` makes of a conversation; errors likewise."""
        text = chat.turn(self._traits, messages, tools=tools, tool_choice=tool_choice,
                         template_args=template_args).text  # fmt: skip
        return text, self._turn_ids(text)

    def _turn_ids(self, text: str) -> list[int]:
        """Token ids of a rendered conversation, with BOS once."""
        starts = bool(self._fallback.bos_token) and text.startswith(self._fallback.bos_token)
        return self.tokenizer.encode(text, add_special=not starts, parse_special=True)

    # ---- the rest ----

    def stats(self) -> Stats:
        """What runs and waits now, and what was done since the model was loaded."""
        return self._engine.stats()

    def bytes_per_token(self, depth: int = 0) -> int:
        """Bytes of weights and KV cache that generating one token reads at a context of `depth` tokens."""
        return cost.bytes_per_token(self._runtime, depth)

    def flop_per_token(self, depth: int = 0) -> int:
        """Floating-point operations of one token at a context of `depth` tokens: matmuls and attention."""
        return cost.flop_per_token(self._runtime, depth)

    def describe_plan(self) -> str:
        """The programs that this model runs, an operation a line."""
        self._engine.check_open()
        return self._runtime.describe()

    def close(self) -> None:
        """End what runs and waits with an error, then the threads, and give the memory back. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _closer(engine: Engine, answering: Answering, store: PrefixStore | None) -> Callable[[], None]:
    """Closes all of them; knows nothing of the model, so that it can run when the model is forgotten, or at exit."""

    def close() -> None:
        engine.close()
        answering.close()
        if store is not None:
            store.close()

    return close
