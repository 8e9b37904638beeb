"""The compiling process: turns kernels named on its command line into object files.

    python -m edgert.kernels_cpu.compile LEVEL DIRECTORY KERNEL...

A kernel's name is `module.function` or `module.factory[a,b]`: the factory is called with the strings in brackets
and returns the function. Its parameters after `tid, nth` are the fields of its argument struct, eight bytes each:
int64 unless annotated `f32`. One line is printed per finished kernel. Runs apart from the program that uses the
kernels, so that Numba is never loaded there and its memory is given back.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resolve(name: str) -> Callable[..., Any]:
    """The Python function behind a kernel name."""
    path, _, variant = name.partition("[")
    module, _, function = path.partition(".")
    found = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    return found(*variant.rstrip("]").split(",")) if variant else found


def signature(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """[(field, "i64" | "f32")] of the argument struct."""
    params = list(inspect.signature(function).parameters.values())[2:]
    return [(p.name, "f32" if str(p.annotation) == "f32" else "i64") for p in params]


def build(name: str) -> bytes:
    """What the cache holds of one kernel: see jit.pack_object."""
    from llvmlite import ir
    from numba import cfunc, njit, types
    from numba.extending import intrinsic

    from .jit import pack_object

    function = resolve(name)
    fields = signature(function)
    kinds = {"i64": (types.int64, ir.IntType(64)), "f32": (types.float32, ir.FloatType())}

    @intrinsic
    def load_args(_t, p):
        def gen(c, b, s, a):
            values = []
            for i, (_, kind) in enumerate(fields):
                address = b.add(a[0], ir.Constant(ir.IntType(64), 8 * i))
                values.append(b.load(b.inttoptr(address, kinds[kind][1].as_pointer())))
            return c.make_tuple(b, s.return_type, values)

        return types.Tuple([kinds[kind][0] for _, kind in fields])(types.int64), gen

    body = njit(function, nogil=True, error_model="numpy", forceinline=True)

    def entry(args, tid, nth):
        body(tid, nth, *load_args(args))

    entry.__qualname__ = entry.__name__ = "edgert_" + "".join(ch if ch.isalnum() else "_" for ch in name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = cfunc(types.void(types.int64, types.int64, types.int64), nopython=True, error_model="numpy")(entry)
    return pack_object(compiled._wrapper_name, fields, _elf(compiled._library))


def _elf(library: Any) -> bytes:
    """The object file of a compiled Numba library, as ELF on every system (macOS's own format is another)."""
    code: bytes = library._get_compiled_object()
    if code.startswith(b"\x7fELF"):
        return code
    from llvmlite import binding

    module, machine = library._final_module, library._codegen._tm
    cpu, features = os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"]
    target = binding.Target.from_triple(machine.triple + "-elf")
    elf = target.create_target_machine(cpu=cpu, features=features, opt=1, reloc="static", codemodel="large")
    return bytes(elf.emit_object(module))


def main(level: str, directory: str, names: list[str]) -> None:
    from . import isa

    cpu, features = isa.target(isa.require(level))
    # Kernels are vectorised by hand; LLVM's own vectorisers would only double the time to compile and the code.
    os.environ.update(NUMBA_OPT="1", NUMBA_SLP_VECTORIZE="0", NUMBA_LOOP_VECTORIZE="0")
    os.environ.update(EDGERT_COMPILE_LEVEL=level, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES=features)
    from .jit import file_name

    for name in names:
        target = Path(directory) / file_name(name)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_bytes(build(name))
        os.replace(partial, target)  # other processes see a whole object or none
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
