"""Answers that must have a form: JSON (of a schema), a regular expression, one of some texts, a grammar.

llguidance says which tokens may come next, from the bytes of our own vocabulary. It works in a thread of its own while
the model runs. What it cannot enforce is an error; nothing is ever left unconstrained.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .formats.tok_roles import CONTROL, UNKNOWN
from .formats.tokenizer import Tokenizer
from .grammars import ConstraintError, from_choices, from_grammar, from_regex, from_schema, line, schema_of_format

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

F32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]

FORMS = ("json_schema", "regex", "choices", "grammar", "response_format")


class Constraint:
    """The form of one answer: which tokens may come next. `mask` and `accept` alternate; not thread-safe."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        """ConstraintError if nothing has the form."""
        self._matcher, self._vocabulary = matcher, vocabulary
        self._next: Future[bytes] = Future()
        self._next.set_result(matcher.compute_bitmask())
        self._allowed()

    def mask(self, logits: F32) -> None:
        """Make the logits (n_vocab,) of tokens that may not come next minus infinity.

        ConstraintError if the grammar became too complex to follow.
        """
        bits = self._allowed()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(np.bool_)
        logits[~allowed] = -np.inf

    def accept(self, token: int) -> bool:
        """Go on after a token that was allowed; true if the answer is complete and nothing may follow."""
        self._matcher.consume_token(token)
        self._check()
        if self._matcher.is_stopped():
            return True
        self._next = self._vocabulary.worker.submit(self._matcher.compute_bitmask)
        return False

    def _allowed(self) -> Bits:
        """(ceil(n_vocab / 8),) a bit for each token. One that ends the answer may come only where it is complete."""
        bits = np.frombuffer(self._next.result(), np.uint8)[: len(self._vocabulary.never)] & ~self._vocabulary.never
        self._check()
        if not self._matcher.is_accepting():
            bits &= ~self._vocabulary.ends
        if not bits.any():
            raise ConstraintError("nothing in the vocabulary can go on with this form")
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(f"the form cannot be followed: {line(self._matcher.get_error())}")


@dataclass(frozen=True)
class Vocabulary:
    """What llguidance knows of a vocabulary; bits (ceil(n_vocab / 8),) of tokens, the lowest first; its thread."""

    table: LLTokenizer
    never: Bits  # have no place in a text
    ends: Bits  # end an answer
    worker: ThreadPoolExecutor


class Constrainer:
    """Makes constraints for one vocabulary. Thread-safe.

    The first takes longer: llguidance's table of the vocabulary takes 0.1 s for 49 k tokens and 1.3 s for 262 k.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer, self._n_vocab = tokenizer, n_vocab
        self._lock = threading.Lock()
        self._known: Vocabulary | None = None

    def constraint(
        self,
        *,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        grammar: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> Constraint | None:
        """The one that is asked for, None if none is. ConstraintError if it cannot be had, or if several are.

        json_schema      a schema, or its text; true for any JSON
        regex            for the whole answer, in the syntax of Rust's regex (no look-around, no back-references)
        choices          texts of which the answer is one
        grammar          Lark as llguidance has it, or GBNF
        response_format  OpenAI's: {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": ...}}
        """
        if response_format is not None and (of_format := schema_of_format(response_format)) is not None:
            if json_schema is not None:
                raise ConstraintError("json_schema and response_format: give one of them")
            json_schema = of_format
        given = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if not names:
            return None
        if len(names) > 1:
            raise ConstraintError(f"{' and '.join(names)}: give one of them")
        source = {"json_schema": from_schema, "regex": from_regex, "choices": from_choices, "grammar": from_grammar}
        text = source[names[0]](given[names[0]])
        return self._compile(names[0], text)

    def _compile(self, name: str, text: str) -> Constraint:
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self._vocabulary()
        matcher = LLMatcher(vocabulary.table, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise ConstraintError(f"{name}: {line(matcher.get_error())}")
        try:
            return Constraint(matcher, vocabulary)
        except ConstraintError as error:
            raise ConstraintError(f"{name}: no answer can have this form: {error}") from None

    def _vocabulary(self) -> Vocabulary:
        with self._lock:
            if self._known is None:
                self._known = _vocabulary(self._tokenizer, self._n_vocab)
            return self._known

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            if self._known is not None:
                self._known.worker.shutdown()
                self._known = None


def _vocabulary(tokenizer: Tokenizer, n_vocab: int) -> Vocabulary:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.eog_ids:
        raise ConstraintError("the vocabulary has no token that ends an answer, so none can be constrained")
    pieces = tokenizer.pieces() + [b""] * (n_vocab - tokenizer.n_vocab)
    wrapped = _Wrapped(tokenizer, pieces)
    table = LLTokenizer(TokenizerWrapper(wrapped), n_vocab=n_vocab, eos_token=sorted(tokenizer.eog_ids))
    ends = np.zeros(n_vocab, np.bool_)
    ends[sorted(tokenizer.eog_ids)] = True
    never = np.array([not piece for piece in pieces])
    never[wrapped.special_token_ids] = True
    never &= ~ends
    never_bits, end_bits = (np.packbits(each, bitorder="little") for each in (never, ends))
    return Vocabulary(table, never_bits, end_bits, ThreadPoolExecutor(1, thread_name_prefix="edgert-grammar"))


class _Wrapped:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes]) -> None:
        attrs = tokenizer.vocab.attrs
        self.tokens = pieces
        self.eos_token_id = min(tokenizer.eog_ids)
        self.bos_token_id = tokenizer.bos_id if tokenizer.bos_id >= 0 else None
        self.special_token_ids = [i for i in range(len(attrs)) if attrs[i] & (CONTROL | UNKNOWN)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(text, add_special=False)
