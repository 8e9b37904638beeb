"""Check a model file: its SHA-256 where the right one is known, and its structure without reading the weights.

With --golden the model also answers its golden prompt, and its tokens are compared with the reference's.
"""

import argparse

import edgert

from .console import MODEL_HELP, Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--quick", action="store_true", help="structure only, do not read the whole file for its hash")
    parser.add_argument("--golden", action="store_true", help="run the model's golden prompt and compare its tokens")


def execute(options: argparse.Namespace) -> int:
    path = edgert.registry.local_path(options.model)
    edgert.verify(path)
    print(f"structure: well formed ({path})")
    if not options.quick:
        with Progress() as progress:
            sha256 = edgert.registry.verify(options.model, progress)
        print(f"sha256: {sha256} as expected" if sha256 else "sha256: nothing is known about this file to compare with")
    if options.golden:
        _check_golden(options.model)
    return 0


def _check_golden(name: str) -> None:
    """Raise EdgertError unless exact greedy decoding gives the tokens of models.toml."""
    entry = edgert.registry.known().get(name)
    if entry is None or entry.golden is None:
        raise edgert.EdgertError(f"{name} has no golden prompt in models.toml")
    wanted = list(entry.golden.tokens)
    with Progress() as progress, edgert.load(name, precision="exact", n_ctx=512, progress=progress) as model:
        ids = model.tokenize(entry.golden.prompt, add_special=True, parse_special=True)
        found = list(model.generate(ids, max_tokens=len(wanted), temperature=0).ids)
    if found != wanted:
        raise edgert.EdgertError(f"{name}: greedy tokens are {found}, expected {wanted}")
    print(f"golden: {len(wanted)} tokens as expected")
