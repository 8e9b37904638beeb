"""Download a model, verify its SHA-256, and print where it is. An interrupted download continues where it stopped."""

import argparse

import edgert

from .console import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name from 'edgert list', or hf:OWNER/REPO/FILE.gguf")
    parser.add_argument("--force", action="store_true", help="download it again even if it is here")


def execute(options: argparse.Namespace) -> int:
    with Progress() as progress:
        path = edgert.registry.pull(options.model, progress, force=options.force)
    print(path)
    return 0
