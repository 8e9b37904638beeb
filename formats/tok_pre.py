"""Pre-tokenizers of BPE vocabularies: which `tokenizer.ggml.pre` cuts a text into words how.

A pre-tokenizer is a list of steps; each step cuts every piece the steps before it left. A step is an expression and
the view of the text it runs on: what it matches becomes a piece, and so does what lies between its matches.
Source of names and expressions: llama.cpp, src/llama-vocab.cpp and src/unicode.cpp, rewritten for Python's `re`
where they would be slow or where C++ differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from edgert.formats.metadata import Metadata
from edgert.formats.tok_unicode import HAN, LETTER, L, M, N, P, S, Y, collapsed, collapsed_han, folded

View = Callable[[str], str]


@dataclass(frozen=True)
class Step:
    """One cut: `expr` runs on `view(text)`. With `groups` each match is cut into threes counted from its right end
    instead, and what lies before it stays with its first group (as in llama.cpp)."""

    expr: str
    view: View = collapsed
    groups: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.expr)

    def cut(self, view: str, start: int, end: int) -> Iterable[int]:
        """Offsets within `start` < offset <= `end` where the piece view[start:end] is cut, the last one being `end`."""
        piece = view if start == 0 and end == len(view) else view[start:end]
        last = start
        for match in self.regex.finditer(piece):
            lo, hi = match.span()
            lo, hi = lo + start, hi + start
            if lo > last and not self.groups:
                yield lo
            if self.groups:
                yield from range(lo + ((hi - lo) % 3 or 3), hi, 3)
            if hi > lo:
                yield hi
            last = hi
        if last < end:
            yield end


@dataclass(frozen=True)
class PreTokenizer:
    """Steps that cut a text into words, and what else llama.cpp derives from the pre-tokenizer's name."""

    steps: tuple[Step, ...]
    clean_spaces: bool = False  # detokenizing drops the space in " ?", " 's" and the like
    ignore_merges: bool = False  # a word that is a token needs no merging
    add_bos: bool = False
    add_sep: bool = False
    no_default_bos: bool = False
    always_bos: bool = False
    escape_whitespaces: bool = False  # spaces are ▁ in the vocabulary
    byte_level: bool = True  # token texts spell bytes in GPT-2's alphabet; else UTF-8 with <0xXX> tokens
    whole_newlines: bool = False  # a run of newlines that is a token needs no merging

    def split(self, text: str) -> list[str]:
        """The words of `text`; joined they are `text`."""
        bounds: list[int] = [len(text)]
        for step in self.steps:
            view = step.view(text)
            cut: list[int] = []
            start = 0
            for end in bounds:
                cut += step.cut(view, start, end)
                start = end
            bounds = cut
        start, words = 0, []
        for end in bounds:
            words.append(text[start:end])
            start = end
        return words


_LAST = rf"[{S}]+(?![^{S}])|[{S}]+"  # \s+(?!\S)|\s+
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|{_LAST}"
_SHORT_FORMS = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_NEWLINES = rf"[{S}]*[\r\n]+|{_LAST}"
_SIGNS = rf" ?[^{S}{L}{N}]+[\r\n]*"
_UPPER, _LOWER = f"A-Z{LETTER}", f"a-z{LETTER}"  # letters beyond ASCII count as both


def _words(digits: str, *, short: str = rf"{_SHORT_FORMS}|", signs: str = _SIGNS, marks: str = "") -> str:
    """The expression of Llama 3 and its many relatives."""
    return rf"{short}[^\r\n{L}{N}]?[{L}{marks}]+|{digits}|{signs}|{_NEWLINES}"


def _cased(upper: str, lower: str, digits: str, short: str, signs: str = rf" ?[^{S}{L}{N}]+[\r\n/]*") -> str:
    """The expression of GPT-4o and its relatives: words are also cut where lower case meets upper case."""
    lead = rf"[^\r\n{L}{N}]?"
    return rf"{lead}[{upper}]*[{lower}]+{short}|{lead}[{upper}]+[{lower}]*{short}|{digits}|{signs}|{_NEWLINES}"


_ONE, _THREE, _ANY = f"[{N}]", f"[{N}]{{1,3}}", f"[{N}]+"


def _chars(spec: str) -> str:
    """A set for [...] from code points and ranges in hexadecimal."""
    return "".join("-".join(f"\\U{int(cp, 16):08x}" for cp in part.split("-")) for part in spec.split())


def _punctuated(tail: str) -> str:
    """The main expression of DeepSeek V3; `tail` follows a run of punctuation."""
    return (
        rf"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{{|}}~][A-Za-z]+|[^\r\n{L}{P}{Y}]?[{L}{M}]+"
        rf"| ?[{P}{Y}]+{tail}|{_LAST}"
    )


_DEEPSEEK3 = Step(_punctuated(rf"[\r\n]*|[{S}]*[\r\n]+"))
_DEEPSEEK_LATIN = _chars(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 "
    "3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a "
    "1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 "
    "212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d "
    "a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f "
    "104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_DEEPSEEK_SIGNS = _chars("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")
_DEEPSEEK_ASIAN = _chars("800-9fa5 ac00-d7ff")
_CJK = Step(f"[{_chars('4e00-9fa5 3040-309f 30a0-30ff')}]+", folded)
_YOUTU_SIGNS = _chars("ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f")
_YOUTU = "|".join(f"[{_chars(c)}]+" for c in ("ac00-d7a3 3131-318e", "3105-312f", "4e00-9fa5 3040-309f 30a0-30ff"))
_AFMOE_SCRIPTS = _chars(
    "4e00-9fff 3400-4dbf 8c48-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)
_BLOOM_SIGNS = _chars("2026 3002 ff0c 3001 964 6d4 60c")
_BLOOM = Step(rf" ?[^({S}|.,!?{_BLOOM_SIGNS})]+", folded)
_LINES = Step(r"[^\n]+|[\n]+", folded)

_LLAMA3 = Step(_words(_THREE))
_QWEN2 = Step(_words(_ONE))
_GPT2_STEP = Step(_GPT2)
_DIGIT = Step(_ONE)
_STARCODER = (_DIGIT, _GPT2_STEP)
_JAIS2_SPACES = "|".join(rf"[{S}]{{{n}}}(?![^{S}])" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + f"|[{S}]"

_STEPS: dict[str, tuple[Step, ...]] = {
    "default": (Step(rf"[{P}$+<=>^~|]+"), _GPT2_STEP, Step(_ANY), Step("[0-9]{3}")),
    "llama3": (_LLAMA3,),
    "jais2": (Step(_words(_THREE).removesuffix(_LAST) + _JAIS2_SPACES),),
    "deepseek-llm": (
        Step(r"[\r\n]", folded),
        Step(rf"[{S}]?[{_DEEPSEEK_LATIN}]+", folded),
        Step(rf"[{S}]?[{_DEEPSEEK_SIGNS}]+", folded),
        Step(rf"(?<![{S}])[{S}]+\Z", folded),
        Step(f"[{_DEEPSEEK_ASIAN}]+", folded),
        Step(_ANY),
    ),
    "deepseek-v3": (Step(_THREE), _CJK, _DEEPSEEK3),
    "spark2_5": (Step(_THREE), _CJK, Step(_punctuated(r"|[\r\n]")), _DIGIT),
    "youtu": (
        Step(f"[{_YOUTU_SIGNS}]+|{_YOUTU}", folded),
        Step(_cased(L + M, L + M, _ONE, f"(?:{_SHORT_FORMS})?")),
    ),
    "deepseek-coder": (
        Step(r"[\r\n]", folded),
        Step(rf"[{S}]?[{L}]+"),
        Step(rf"[{S}]?[{P}]+"),
        Step(f"[{_DEEPSEEK_ASIAN}]+", folded),
        _DIGIT,
    ),
    "falcon": (Step(rf"[{P}$+<=>^~|`]+"), _GPT2_STEP, Step("[0-9]{3}")),
    "starcoder": _STARCODER,
    "gpt-2": (_GPT2_STEP,),
    "qwen2": (_QWEN2,),
    "qwen35": (Step(_words(_ONE, signs=rf" ?[^{S}{L}{M}{N}]+[\r\n]*", marks=M)),),
    "bloom": (_BLOOM,),
    "viking": (_BLOOM, _DIGIT),
    "tekken": (Step(_cased(_UPPER, _LOWER, _ONE, "")),),
    "chameleon": (
        Step("<sentinel:[0-9]+>", folded),
        Step("IMGIMG[A-I]{1,4}Z", folded),
        Step(r"[\t\n]|    |  ", folded),
        _DIGIT,
        Step(rf"[{P}!-/:-@\[-`{{-~]"),
        _GPT2_STEP,
    ),
    "gpt-4o": (Step(_cased(_UPPER, _LOWER, _THREE, f"(?:{_SHORT_FORMS})?")),),
    "granite-embed-multi-97m": (Step(_cased(_UPPER + M, _LOWER + M, _THREE, f"(?:{_SHORT_FORMS})?")),),
    "tiny_aya": (
        Step(_ANY, groups=True),
        Step(_cased(L + M, L + M, _THREE, f"(?:{_SHORT_FORMS})?")),
    ),
    "kimi-k2": (
        Step(
            rf"{HAN}+|[^\r\n{L}{N}{HAN}]?[{L}]+(?:{_SHORT_FORMS})?|{_THREE}| ?[^{S}{L}{N}{HAN}]+[\r\n]*|{_NEWLINES}",
            collapsed_han,
        ),
    ),
    "superbpe": (Step(_ANY), Step("[0-9]+", folded, groups=True)),
    "bailingmoe": (Step(_words(_ONE).replace(rf"[{S}]*[\r\n]+", rf"[{S}]*[\r\n]")),),
    "seed-coder": (Step(_words(_ONE, signs=rf" ?[^{S}{L}{N}\r\n]+")),),
    "ufakzeka": (Step(_words(_ONE, short="")),),
    "afmoe": (Step(_ANY, groups=True), Step(f"[{_AFMOE_SCRIPTS}]+", folded), _DEEPSEEK3),
    "laguna": (_LINES, _QWEN2),
    "exaone-moe": (
        # Possessive: nothing follows that could make the engine give characters back.
        Step(
            rf"{_SHORT_FORMS}|[^\r\n{L}{N}]?(?:[{L}][{M}]*+(?: [{L}][{M}]*+)*+)++|{_ONE}"
            rf"| ?[^{S}{L}{N}]+[\r\n/]?|[{S}]*[\r\n]|{_LAST}"
        ),
    ),
    "lines": (_LINES,),
    "minicpm5": (Step(_THREE), Step(_words(_ANY))),
}

_CLEAN = {"clean_spaces": True}
_LLAMA = {"clean_spaces": True, "ignore_merges": True, "add_bos": True}
# values of tokenizer.ggml.pre, the steps they mean, and what else they imply
_TABLE: tuple[tuple[str, str, dict[str, bool]], ...] = (
    ("default", "default", _CLEAN),
    ("minicpm5", "minicpm5", _CLEAN | {"ignore_merges": True}),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", "llama3", _LLAMA),
    ("deepseek-llm", "deepseek-llm", {}),
    ("deepseek-coder", "deepseek-coder", {}),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", "deepseek-v3", {}),
    ("spark2_5", "spark2_5", {}),
    ("youtu", "youtu", {"ignore_merges": True}),
    ("falcon", "falcon", _CLEAN),
    ("starcoder refact codeshell exaone minerva-7b mellum2", "starcoder", _CLEAN),
    ("command-r smollm", "starcoder", {}),
    (
        "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert olmo jais "
        "exaone4",
        "gpt-2",
        _CLEAN,
    ),
    ("jina-v1-en jina-v2-code roberta-bpe", "gpt-2", _CLEAN | {"add_sep": True}),
    ("trillion granite-docling", "gpt-2", {}),
    ("jais-2", "jais2", _CLEAN),
    (
        "gemma4 granite-embed-multi-311m",
        "lines",
        _CLEAN | {"escape_whitespaces": True, "always_bos": True, "whole_newlines": True},
    ),
    ("sarvam-moe", "lines", {"escape_whitespaces": True}),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2", "qwen2", {}),
    ("stablelm2 megrez", "qwen2", _CLEAN),
    ("qwen35", "qwen35", {}),
    ("dbrx smaug-bpe", "llama3", _CLEAN),
    ("glm4 chatglm-bpe", "llama3", _CLEAN | {"no_default_bos": True}),
    ("poro-chat", "bloom", {}),
    ("bloom gpt3-finnish", "bloom", _CLEAN),
    ("viking", "viking", {}),
    ("tekken", "tekken", {"ignore_merges": True, "add_bos": True}),
    ("exaone-moe", "exaone-moe", _CLEAN),
    ("chameleon", "chameleon", {"add_bos": True}),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", "gpt-4o", {}),
    ("granite-embed-multi-97m", "granite-embed-multi-97m", {"ignore_merges": True}),
    ("tiny_aya cohere2moe", "tiny_aya", {}),
    ("superbpe", "superbpe", {}),
    ("bailingmoe bailingmoe2 llada-moe", "bailingmoe", {}),
    ("seed-coder", "seed-coder", {}),
    ("kimi-k2", "kimi-k2", {}),
    ("ufakzeka", "ufakzeka", {}),
    ("afmoe", "afmoe", {}),
    ("laguna", "laguna", {}),
)
_NAMES = {name: (steps, implied) for names, steps, implied in _TABLE for name in names.split()}
NAMES = tuple(sorted(_NAMES))


def pre_tokenizer(md: Metadata, name: str, *, allow_unknown: bool = False) -> PreTokenizer:
    """The pre-tokenizer called `name`. FormatError if there is none, unless `allow_unknown` takes "default" for it."""
    if name not in _NAMES and not allow_unknown:
        raise md.error("tokenizer.ggml.pre", f"{name!r} is not a pre-tokenizer known here")
    steps, implied = _NAMES.get(name, _NAMES["default"])
    byte_level = not implied.get("escape_whitespaces", False)
    return PreTokenizer(_STEPS[steps], byte_level=byte_level, **implied)
