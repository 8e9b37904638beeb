"""Usual chat templates, for files that carry none: the one whose special tokens the vocabulary has."""

from __future__ import annotations

from collections.abc import Container

_TURNS = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
"""

# The models below have no system role: its text goes in front of the first user message.
_SYSTEM = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{%- set ns.system = ns.system + message['content'] + '\\n\\n' -%}{%- else -%}
{%- set text = message['content'] | trim -%}
{%- if message['role'] == 'user' -%}{%- set text = ns.system + text -%}{%- set ns.system = '' -%}{%- endif -%}
"""

_GEMMA = (
    "{{- bos_token -}}\n"
    + _SYSTEM
    + """\
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + text + '<end_of_turn>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
)

_PHI3 = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}
"""

_LLAMA2 = (
    "{{- bos_token -}}\n"
    + _SYSTEM
    + """\
{%- if message['role'] == 'assistant' -%}{{ ' ' + text + eos_token }}
{%- else -%}{{ '[INST] ' + text + ' [/INST]' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
"""
)

_PLAIN = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{{ message['content'] | trim + '\\n\\n' }}
{%- else -%}{{ message['role'] | capitalize + ': ' + message['content'] | trim + '\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""

FALLBACKS = {
    "chatml": _TURNS,
    "llama3": _LLAMA3,
    "gemma": _GEMMA,
    "phi3": _PHI3,
    "llama2": _LLAMA2,
    "plain": _PLAIN,
}
_TOKENS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "phi3": ("<|user|>", "<|end|>"),
    "llama2": ("[INST]", "[/INST]"),
}


def fallback_name(vocabulary: Container[str]) -> str:
    """The first usual template whose tokens are all in `vocabulary`, else "plain"."""
    return next((name for name, tokens in _TOKENS.items() if all(t in vocabulary for t in tokens)), "plain")
