"""Chat templates: a conversation as the text a model was trained on.

`chat_template_from_metadata` takes the template a GGUF file carries, or a usual one for its special tokens when it
carries none. Templates are Jinja programs from strangers: they run in a sandbox with limits on time and size.
jinja2 is imported with the first render.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from edgert.formats.chat_fallback import FALLBACKS, fallback_name
from edgert.formats.errors import FormatError, quote
from edgert.formats.metadata import Metadata

if TYPE_CHECKING:
    import jinja2
    from edgert.formats.chat_sandbox import ChatEnvironment
    from edgert.formats.tokenizer import Tokenizer

MAX_SOURCE = 2**17  # characters; the longest templates known have 30 thousand
_SECONDS = 5.0


class TemplateError(FormatError):
    """A chat template that cannot be compiled, refuses the conversation, or exceeds its limits."""


class ChatTemplate:
    """One template, compiled at the first `render`. `name` says where it is from ("file", or that of a usual one).

    `tool_source` is a second template for conversations with tools, if the model has one. Safe to use from several
    threads.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        name: str = "file",
        tool_source: str | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self.source, self.tool_source = source, tool_source
        self.bos_token, self.eos_token = bos_token, eos_token
        self.name = name
        self._seconds = seconds

    @cached_property
    def _template(self) -> jinja2.Template:
        return _compile(self.source)

    @cached_property
    def _tool_template(self) -> jinja2.Template:
        return self._template if self.tool_source is None else _compile(self.tool_source)

    def check(self) -> None:
        """TemplateError if the template (or that for tools) is not valid Jinja."""
        _ = self._template, self._tool_template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for `messages` ({"role": ..., "content": ...}, ...), ending where the model's answer begins.

        `tools` are JSON schemas as OpenAI's API has them, `now` is the time a template may print (default: now),
        `extra` are variables some templates know (`enable_thinking`, `documents`, ...). The text holds special tokens:
        encode it with parse_special, and without add_special when it starts with `bos_token`. TemplateError carries the
        template's own words when it refuses the conversation, else what went wrong; and the line,
        and the message that it was at.
        """
        from edgert.formats.chat_sandbox import render, strftime_now
        from jinja2.exceptions import TemplateError as JinjaError

        template = self._tool_template if tools else self._template
        variables: dict[str, Any] = {
            "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token, "eos_token": self.eos_token,
            "strftime_now": strftime_now(now or datetime.now()), **extra,
        }  # fmt: skip
        try:
            return render(template, variables, self._seconds)
        except JinjaError as error:
            message = error.message or type(error).__name__
            if type(error) is JinjaError:  # raise_exception(...) in the template
                raise TemplateError(f"{message} ({self._place(template, error, messages)})") from None
            raise self._failed(template, error, message, messages) from None
        except RecursionError as error:
            raise self._failed(template, error, "nested too deeply", messages) from None
        except MemoryError as error:
            raise self._failed(template, error, "out of memory", messages) from None
        except Exception as error:  # a template's mistake shows as whatever Python raises in its code
            raise self._failed(template, error, f"{type(error).__name__}: {error}", messages) from None

    def _failed(
        self, template: jinja2.Template, error: BaseException, message: str, messages: Sequence[Mapping[str, Any]]
    ) -> TemplateError:
        return TemplateError(f"{self._place(template, error, messages)}: {_one_line(message)}")

    def _place(self, template: jinja2.Template, error: BaseException, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's line in which its innermost frame was, and the message that it was at."""
        line, at, code = 0, -1, template.root_render_func.__code__.co_filename
        trace = error.__traceback__
        index = {id(message): i for i, message in enumerate(messages)}
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_filename == code:
                line = template.get_corresponding_lineno(trace.tb_lineno)
                at = max((index.get(id(value), -1) for value in frame.f_locals.values()), default=-1)
            trace = trace.tb_next
        where = f"chat template, line {line}" if line else "chat template"
        role = messages[at].get("role") if at >= 0 else None
        return f"{where}, messages[{at}] of role {quote(str(role))}" if at >= 0 else where


def chat_template_from_metadata(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate:
    """The file's own template, with the one for tools if there are two; else a usual one that fits the vocabulary.

    FormatError when the metadata holds something else than text there.
    """
    md = metadata if isinstance(metadata, Metadata) else Metadata(metadata)
    text = tokenizer.token_text
    bos, eos = text(tokenizer.bos_id), text(tokenizer.eos_id)
    key = "tokenizer.chat_template"
    tool_source = md.get_str(f"{key}.tool_use") if f"{key}.tool_use" in md else None
    for name in (key, f"{key}.default"):
        if name in md:
            return ChatTemplate(md.get_str(name), bos_token=bos, eos_token=eos, tool_source=tool_source)
    name = fallback_name(tokenizer.vocab.token_to_id)
    return ChatTemplate(FALLBACKS[name], bos_token=bos, eos_token=eos, name=name, tool_source=tool_source)


@cache
def _environment() -> ChatEnvironment:
    from edgert.formats.chat_sandbox import ChatEnvironment

    return ChatEnvironment()


def _compile(source: str) -> jinja2.Template:
    from jinja2.exceptions import TemplateSyntaxError

    if len(source) > MAX_SOURCE:
        raise TemplateError(f"chat template: it has {len(source)} characters, at most {MAX_SOURCE} are supported")
    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {_one_line(error.message or '')}") from None
    except (RecursionError, MemoryError):
        raise TemplateError("chat template: nested too deeply") from None
    except Exception as error:  # Python refuses the generated code: too many nested blocks, bad escapes, ...
        raise TemplateError(f"chat template: {type(error).__name__}: {_one_line(str(error))}") from None


def _one_line(text: str) -> str:
    return quote(text, 300)[1:-1] if "\n" in text or len(text) > 300 else text
