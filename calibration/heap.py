"""Keep freed memory inside the process, as a caching allocator does on a GPU.

glibc hands blocks of megabytes back to the kernel when they are freed and faults their pages in again at the next
allocation: a norm of 16 MiB then takes ten times its arithmetic, or not, depending on what else lies on the heap. A
process that calls `keep_freed_memory` first is faster and its kernels cost what their shapes say. Calibration does; a
trained run should too.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 2**31 - 1  # the largest value mallopt takes: never trim, never map


def keep_freed_memory() -> bool:
    """Ask the C library never to return freed memory. False where it is not glibc (nothing is changed then)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, _KEEP_BYTES) == 1 for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)) and bool(
        mallopt(_M_TOP_PAD, 64 << 20)
    )
