"""Memory for machine code: written first, then sealed, so that no page is ever writable and executable at once."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys

_READ_WRITE, _READ_EXECUTE = 3, 5  # PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC
_WIN_COMMIT_RESERVE, _WIN_READ_WRITE, _WIN_EXECUTE_READ = 0x3000, 0x04, 0x20


class Code:
    """`size` zeroed bytes on a page border that can be written until `seal`. Never given back: code may be running."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        if sys.platform == "win32":
            allocate = ctypes.WinDLL("kernel32", use_last_error=True).VirtualAlloc
            allocate.restype = ctypes.c_void_p
            allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ulong, ctypes.c_ulong]
            self.address: int = allocate(None, self.size, _WIN_COMMIT_RESERVE, _WIN_READ_WRITE) or 0
            if not self.address:
                raise ctypes.WinError(ctypes.get_last_error())
        else:
            allocate = ctypes.CDLL(None, use_errno=True).mmap
            allocate.restype = ctypes.c_void_p
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            # Not Python's mmap: that ends with the interpreter, while threads of a team may still be in here.
            self.address = allocate(None, ctypes.c_size_t(self.size), _READ_WRITE, flags, -1, ctypes.c_long(0)) or 0
            if self.address == ctypes.c_void_p(-1).value:
                raise OSError(ctypes.get_errno(), f"no memory for {self.size} bytes of code")

    def seal(self, image: bytes | bytearray) -> None:
        """Copy the image there and make it executable. OSError if the system does not allow that."""
        if len(image) > self.size:
            raise ValueError(f"{len(image)} bytes do not fit in {self.size}")
        ctypes.memmove(self.address, bytes(image), len(image))
        if sys.platform == "win32":
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            old = ctypes.c_ulong()
            place = ctypes.c_void_p(self.address), ctypes.c_size_t(self.size)
            if not kernel.VirtualProtect(*place, ctypes.c_ulong(_WIN_EXECUTE_READ), ctypes.byref(old)):
                raise ctypes.WinError(ctypes.get_last_error())
            kernel.FlushInstructionCache(ctypes.c_void_p(-1), *place)
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), _READ_EXECUTE):
            error = ctypes.get_errno()
            raise OSError(error, f"memory cannot be made executable: {os.strerror(error)}")
        self._flush()

    def _flush(self) -> None:
        """Make the processor see new instructions. x86 does by itself; Linux on Arm did at mprotect, fresh pages only,
        so libgcc's call, where there is one, is for other kernels than Linux's."""
        if platform.machine().lower() not in ("arm64", "aarch64"):
            return
        if sys.platform == "darwin":
            invalidate = ctypes.CDLL(None).sys_icache_invalidate
            invalidate(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))
            return
        try:
            clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
        except (OSError, AttributeError):
            return
        clear(ctypes.c_void_p(self.address), ctypes.c_void_p(self.address + self.size))
