"""What becomes of memory that a role frees?"""

from __future__ import annotations

import ctypes


def keep_memory() -> None:
    """Make malloc keep what is freed: fresh memory for each large message costs a page fault per 4 KB."""
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h of glibc; other libraries have no such knobs
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
