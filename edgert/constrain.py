"""Answers that must have a form: JSON (of a schema), a regular expression, one of some texts, a grammar.

llguidance says which tokens may come next, from the bytes of our own vocabulary. It works in a thread of its own while
the model runs. What it cannot enforce is an error; nothing is ever left unconstrained.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import EdgertError
from .formats.tok_roles import CONTROL, UNKNOWN
from .formats.tokenizer import Tokenizer
from .json_schema import bounded, pointer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

F32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]

FORMS = ("json_schema", "regex", "choices", "grammar", "response_format")
WHITESPACE = r" |\n{1,2}[ \t]{0,20}"  # between the parts of JSON; small models would go on with it for ever
MAX_DEPTH = 100  # of a schema
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_GBNF_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


class ConstraintError(EdgertError):
    """A schema, regular expression or grammar that is broken, or that cannot be enforced."""


class Constraint:
    """The form of one answer: which tokens may come next. `mask` and `accept` alternate; not thread-safe."""

    def __init__(self, matcher: LLMatcher, never: Bits, worker: ThreadPoolExecutor) -> None:
        """never (ceil(n_vocab / 8),): a bit for each token that has no place in a text, the lowest first."""
        self._matcher, self._never, self._worker = matcher, never, worker
        self._next: Future[bytes] = worker.submit(matcher.compute_bitmask)

    def mask(self, logits: F32) -> None:
        """Make the logits (n_vocab,) of tokens that may not come next minus infinity.

        ConstraintError if the grammar became too complex to follow.
        """
        bits = np.frombuffer(self._next.result(), np.uint8)[: len(self._never)] & ~self._never
        self._check()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(np.bool_)
        if not allowed.any():
            raise ConstraintError("the grammar leaves no token that the vocabulary has")
        logits[~allowed] = -np.inf

    def accept(self, token: int) -> bool:
        """Go on after a token that was allowed; true if the answer is complete and nothing may follow."""
        self._matcher.consume_token(token)
        self._check()
        if self._matcher.is_stopped():
            return True
        self._next = self._worker.submit(self._matcher.compute_bitmask)
        return False

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(f"the answer cannot be constrained: {_line(self._matcher.get_error())}")


class Constrainer:
    """Makes constraints for one vocabulary. Thread-safe.

    The first takes longer: llguidance's table of the vocabulary takes 0.1 s for 49 k tokens and 1.3 s for 262 k.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer, self._n_vocab = tokenizer, n_vocab
        self._lock = threading.Lock()
        self._table: tuple[LLTokenizer, Bits, ThreadPoolExecutor] | None = None

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
        if response_format is not None and (of_format := _schema_of_format(response_format)) is not None:
            if json_schema is not None:
                raise ConstraintError("json_schema and response_format: give one of them")
            json_schema = of_format
        given = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
        names = [name for name, value in given.items() if value is not None]
        if not names:
            return None
        if len(names) > 1:
            raise ConstraintError(f"{' and '.join(names)}: give one of them")
        source = {"json_schema": _from_schema, "regex": _from_regex, "choices": _from_choices, "grammar": _from_grammar}
        text = source[names[0]](given[names[0]])
        return self._compile(names[0], text)

    def _compile(self, name: str, text: str) -> Constraint:
        from llguidance import LLMatcher

        tokenizer, never, worker = self._vocabulary()
        matcher = LLMatcher(tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ConstraintError(f"{name}: {_line(matcher.get_error())}")
        return Constraint(matcher, never, worker)

    def _vocabulary(self) -> tuple[LLTokenizer, Bits, ThreadPoolExecutor]:
        with self._lock:
            if self._table is None:
                pieces = self._tokenizer.pieces() + [b""] * (self._n_vocab - self._tokenizer.n_vocab)
                table = _table(self._tokenizer, pieces)
                attrs = self._tokenizer.vocab.attrs
                never = np.array([not piece for piece in pieces])
                never[[i for i in range(len(attrs)) if attrs[i] & (CONTROL | UNKNOWN)]] = True
                never[sorted(self._tokenizer.eog_ids)] = False
                worker = ThreadPoolExecutor(1, thread_name_prefix="edgert-grammar")
                self._table = table, np.packbits(never, bitorder="little"), worker
            return self._table

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            if self._table is not None:
                self._table[2].shutdown()
                self._table = None


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


def _table(tokenizer: Tokenizer, pieces: Sequence[bytes]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.eog_ids:
        raise ConstraintError("the vocabulary has no token that ends an answer, so none can be constrained")
    wrapped = TokenizerWrapper(_Wrapped(tokenizer, pieces))
    return LLTokenizer(wrapped, n_vocab=len(pieces), eos_token=sorted(tokenizer.eog_ids))


def _schema_of_format(given: Mapping[str, Any]) -> Mapping[str, Any] | str | bool | None:
    """The schema that OpenAI's response_format asks for; None for free text."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        return {"type": "object"} if schema is None else schema
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if schema is None:
            raise ConstraintError("response_format: /json_schema/schema is missing")
        return schema  # type: ignore[no-any-return]
    raise ConstraintError(f"response_format: /type is {kind!r}, not 'text', 'json_object' or 'json_schema'")


def _from_schema(given: Any) -> str:
    from llguidance import LLMatcher

    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"json_schema: not JSON: {_line(str(error))}") from None
    if given is True:
        given = {}
    if not isinstance(given, Mapping):
        raise ConstraintError(f"json_schema: {given!r} is not a schema that an answer could have")

    def compiled(schema: Any) -> str:
        options: JsonCompileOptions = {"whitespace_pattern": WHITESPACE}
        text = json.dumps(bounded(schema))
        return LLMatcher.grammar_from_json_schema(text, defaults=options, overrides={"lenient": False})

    def check(schema: Any) -> str:
        return LLMatcher.validate_grammar(compiled(schema)) if isinstance(schema, Mapping) else _no_schema(schema)

    _check_depth(given)
    try:
        if wrong := check(given):
            where = pointer(given, check) or "the whole schema"
            raise ConstraintError(f"json_schema: {where}: {_line(wrong)}")
        return compiled(given)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"json_schema: {_line(str(error))}") from None


def _no_schema(given: Any) -> str:
    return "" if isinstance(given, bool) else "schema must be an object or boolean"


def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ConstraintError(f"json_schema: nested more than {MAX_DEPTH} deep")
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        level = inner


def _from_regex(given: Any) -> str:
    from llguidance import LLMatcher

    if not isinstance(given, str):
        raise ConstraintError(f"regex: {given!r} is not text")
    return LLMatcher.grammar_from_regex(given)


def _from_choices(given: Any) -> str:
    from llguidance import LLMatcher

    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConstraintError("choices: not a list of texts")
    if not all(isinstance(text, str) and text for text in given):
        raise ConstraintError("choices: every one must be text that is not empty")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in given))


def _from_grammar(given: Any) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if not isinstance(given, str) or not given.strip():
        raise ConstraintError("grammar: not the text of a grammar")
    if _GBNF_RULE.search(given):
        try:
            given = gbnf_to_lark(_GBNF_ESCAPE.sub(_plain, given))
        except Exception as error:  # the converter raises bare exceptions
            raise ConstraintError(f"grammar: {_line(str(error))}") from None
    return LLMatcher.grammar_from_lark(given)


def _plain(escape: re.Match[str]) -> str:
    """A character of GBNF for its \\x, \\u or \\U escape, which the converter to Lark gets wrong."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None or int(digits, 16) > 0x10FFFF or 0xD800 <= int(digits, 16) < 0xE000:
        return escape[0]
    character = chr(int(digits, 16))
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(character) or ("\\" + character if character in '"\\[]' else character)


def _line(message: str) -> str:
    """A message of several lines in one."""
    return " ".join(message.split())
