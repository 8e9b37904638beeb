"""A jinja2 environment for chat templates that nobody has to trust.

jinja2's immutable sandbox keeps a template from reaching Python; it does not keep it from running or growing without
end. Added here: a deadline that every loop, macro, call and assignment checks, and a limit on the size of every value
that outlives an expression. What one expression can still do is bounded by the template's length.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 16 * 2**20  # of the output and of every value, containers counted with all they hold
_ITEM = 16  # what an item of a container counts for, besides what it holds
_MAX_BITS = 4096
_MAX_WIDTH = 1000  # of padding, indentation and the like
_WIDE_FORMAT = re.compile(r"\*|\d{4}|\{[^{}]*:[^{}]*\{")
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")
_LAZY = ("map", "select", "reject", "selectattr", "rejectattr")
_REMOVED = ("lipsum", "random", "urlize", "pprint", "sum", "slice", "batch", "wordwrap", "xmlattr")


class Guard(threading.local):
    """The limits of the render under way in this thread."""

    deadline = float("inf")

    def start(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def tick(self) -> bool:
        """True; SecurityError once the time is over."""
        if time.monotonic() > self.deadline:
            raise SecurityError("it takes too long")
        return True

    def keep(self, value: Any) -> Any:
        """`value`, if it is small enough to be kept."""
        self.tick()
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, list | tuple | dict):
            size = self._weigh(value)
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise SecurityError("a number gets too large")
        else:
            return value
        return self.fits(size, value)

    def fits(self, size: int, value: Any = None) -> Any:
        """`value`, if `size` characters or items are allowed."""
        if size > MAX_CHARS:
            raise SecurityError("a value gets too large")
        return value

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """`values` one by one, as long as time and size allow."""
        total = 0
        for value in values:
            self.keep(value)
            total += len(value) if isinstance(value, str) else 1
            self.fits(total)
            yield value

    def _weigh(self, value: Any) -> int:
        total, stack = 0, [value]
        while stack and total <= MAX_CHARS:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, list | tuple | dict):
                total += (len(item) + 1) * _ITEM
                if total <= MAX_CHARS:
                    stack.extend(item)
                    stack.extend(item.values() if isinstance(item, dict) else ())
        return total


class _Generation(Extension):
    """`{% generation %}`: marks what the model says, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Environment with the filters, globals and settings that templates from Hugging Face expect."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], optimized=False)
        self.guard = Guard()
        self.concat = self._concat  # type: ignore[method-assign]  # how a template's code joins what it captured
        self.globals["raise_exception"] = _raise_exception
        self.globals.pop("lipsum")
        for name in _REMOVED:
            self.filters.pop(name, None)
        self.filters.update(
            tojson=self._tojson, join=self._join, replace=self._replace, center=self._center, indent=self._indent,
            format=self._format,
        )  # fmt: skip
        for name in _LAZY:
            self.filters[name] = self._lazy(self.filters[name])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            call = self._guarded("tick", node.lineno)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))  # type: ignore[attr-defined]
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(self._guarded("tick", node.lineno), node.test)
        for assign in tree.find_all(nodes.Assign):
            assign.node = self._guarded("keep", assign.lineno, assign.node)
        for scope in tree.find_all(nodes.With):
            scope.values = [self._guarded("keep", scope.lineno, v) for v in scope.values]
        self._replace_concats(tree)
        return tree

    def _guarded(self, method: str, lineno: int, *args: nodes.Node) -> nodes.Call:
        target = nodes.EnvironmentAttribute(f"guard.{method}")
        arguments: list[Any] = list(args)
        call = nodes.Call(target, arguments, [], None, None)
        return call.set_lineno(lineno)  # type: ignore[return-value]

    def _replace_concats(self, node: nodes.Node) -> None:
        """`a ~ b` as a call of `chain`, which looks at the size first."""
        for name, value in list(node.iter_fields()):
            items = value if isinstance(value, list) else [value]
            changed = []
            for item in items:
                if isinstance(item, nodes.Node):
                    self._replace_concats(item)
                if isinstance(item, nodes.Concat):
                    call = nodes.Call(nodes.EnvironmentAttribute("chain"), item.nodes, [], None, None)
                    item = call.set_lineno(item.lineno)
                changed.append(item)
            if any(a is not b for a, b in zip(items, changed, strict=True)):
                setattr(node, name, changed if isinstance(value, list) else changed[0])

    def chain(self, *parts: Any) -> str:
        """The parts as one string."""
        return self._concat([str(self.guard.keep(part)) for part in parts])

    def _concat(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        self.guard.fits(sum(map(len, parts)))
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.guard.tick()
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, str | list | tuple) and isinstance(b, int):
                    self.guard.fits(len(a) * b)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.guard.keep(1 << min(left.bit_length() * max(right, 0), 2 * _MAX_BITS))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.guard.fits(len(left) + len(right))
        result = super().call_binop(context, operator, left, right)
        return self.guard.keep(result) if isinstance(result, int | str) else result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        guard, owner = __self.guard, getattr(__obj, "__self__", None)
        if owner is guard:  # put there by _parse
            return __obj(*args)
        for value in (*args, *kwargs.values()):
            guard.keep(value)
        if isinstance(owner, str):
            __self._check_method(owner, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(str(value.__self__))
        return wrapped

    def _check_method(self, text: str, method: str, args: tuple[Any, ...]) -> None:
        if method in _PADDING and args:
            _check_width(args[0])
            self.guard.fits(len(text) + text.count("\t") * _MAX_WIDTH if method == "expandtabs" else 0)
        elif method == "replace" and len(args) > 1:
            self._check_replace(text, args[0], args[1])
        elif method == "join" and args and isinstance(args[0], list | tuple | str | dict):
            self.guard.fits(sum(len(a) for a in args[0] if isinstance(a, str)) + len(args[0]) * len(text))
        elif method == "translate":
            raise SecurityError("str.translate is not available")

    def _check_replace(self, text: str, old: Any, new: Any) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self.guard.fits(len(text) + text.count(old) * len(new))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Hugging Face's filter writes it: no HTML escapes, and as `json.dumps` would."""
        self.guard.keep(value)
        _check_width(len(indent) if isinstance(indent, str) else indent or 0)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        parts = [str(item) for item in self.guard.each(items)]
        return self._concat([str(d).join(parts)] if len(parts) * len(d) <= MAX_CHARS else [d] * len(parts))

    def _lazy(self, filter: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(filter)  # keeps the mark of filters that take the context
        def wrapper(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            items = self.guard.each(value) if value else value
            return self.guard.each(filter(context, items, *args, **kwargs))

        return wrapper

    def _replace(self, s: Any, old: str, new: str, count: int | None = None) -> str:
        text = str(self.guard.keep(s))
        self._check_replace(text, old, new)
        return text.replace(str(old), str(new), -1 if count is None else count)

    def _center(self, value: Any, width: int = 80) -> str:
        _check_width(width)
        return str(value).center(width)

    def _indent(self, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        size = len(width) if isinstance(width, str) else width
        _check_width(size)
        self.guard.fits(len(s) + (s.count("\n") + 1) * size)
        result: str = FILTERS["indent"](s, width, first, blank)
        return result

    def _format(self, value: str, *args: Any, **kwargs: Any) -> str:
        _check_format(str(value))
        result: str = FILTERS["format"](value, *args, **kwargs)
        return result


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _check_width(width: Any) -> None:
    if isinstance(width, int) and width > _MAX_WIDTH:
        raise SecurityError(f"a width of {width} is too large")


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise SecurityError("a format with a computed or very large width is not available")


def strftime_now(now: Any) -> Callable[[str], str]:
    """The template function of that name, for the time `now` (a datetime)."""

    def render(format: str) -> str:
        return str(now.strftime(format))

    return render


def render(template: Any, variables: Mapping[str, Any], seconds: float) -> str:
    """The text of `template`, SecurityError when it takes longer or gets longer than allowed."""
    environment: ChatEnvironment = template.environment
    environment.guard.start(seconds)
    size, out = 0, []
    for piece in template.root_render_func(template.new_context(dict(variables))):
        size += len(piece)
        environment.guard.fits(size)
        environment.guard.tick()
        out.append(piece)
    return "".join(out)
