"""Character classes for pre-tokenizers: each character of a text replaced by one that stands for its class.

llama.cpp runs its pre-tokenizer expressions on such a text ("collapsed"), so that plain character sets can stand for
`\\p{L}` and the like; doing the same gives the same words. ASCII stays as it is. Classes of other characters come from
Python's unicodedata, so a character that is newer than the interpreter's Unicode version counts as `OTHER`.
"""

from __future__ import annotations

import re
import unicodedata

OTHER, NUMBER, LETTER, PUNCTUATION, MARK, SYMBOL, HAN = "\xd0\xd1\xd2\xd3\xd4\xd5\xd6"
_CLASS_OF_CATEGORY = {"N": NUMBER, "L": LETTER, "P": PUNCTUATION, "M": MARK, "S": SYMBOL}

# Sets to be put inside [...] of an expression that runs on a collapsed text.
S = r" \t\n\v\f\r"  # white space; all other white space collapses to \v
L = rf"A-Za-z{LETTER}"
N = rf"0-9{NUMBER}"
P = rf"!-#%-*,-/:;?@\[-\]_{{}}{PUNCTUATION}"
Y = rf"$+<=>^`|~{SYMBOL}"
M = MARK

WHITESPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_WIDE_SPACE = re.compile(f"[{WHITESPACE[6:]}]")

_HAN_RANGES = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0x2CEB0, 0x2EBEF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class _Collapse(dict[int, str]):
    """Translation table that fills itself with the classes of the characters it meets."""

    def __init__(self, han: bool) -> None:
        super().__init__({i: chr(i) for i in range(128)})
        self.han = han

    def __missing__(self, cp: int) -> str:
        char = chr(cp)
        if char in WHITESPACE:
            kind = "\v"
        elif self.han and any(lo <= cp <= hi for lo, hi in _HAN_RANGES):
            kind = HAN
        else:
            kind = _CLASS_OF_CATEGORY.get(unicodedata.category(char)[0], OTHER)
        self[cp] = kind
        return kind


_COLLAPSE, _COLLAPSE_HAN = _Collapse(han=False), _Collapse(han=True)


def collapsed(text: str) -> str:
    """`text` with every non-ASCII character replaced by its class (same length)."""
    return text if text.isascii() else text.translate(_COLLAPSE)


def collapsed_han(text: str) -> str:
    """As `collapsed`, with a class of their own for Chinese characters."""
    return text if text.isascii() else text.translate(_COLLAPSE_HAN)


def folded(text: str) -> str:
    """`text` with all non-ASCII white space as \\v (same length)."""
    return text if text.isascii() else _WIDE_SPACE.sub("\v", text)
