"""What pytest collects here depends on the machine."""

from edgert.kernels_cpu import isa

collect_ignore = []
if isa.machine() != "x86_64":  # no other machine has levels whose instructions could be told apart
    collect_ignore.append("test_disassembly.py")
if "avx512vnni" not in isa.available():  # which the emulation of tiles needs
    collect_ignore.extend(["test_amx.py", "test_attn_amx.py"])
