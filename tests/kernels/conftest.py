"""What pytest collects here depends on the machine: only x86 has levels whose instructions can be told apart."""

from edgert.kernels_cpu import isa

collect_ignore = [] if isa.machine() == "x86_64" else ["test_disassembly.py"]
