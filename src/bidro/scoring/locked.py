"""A process that can do nothing but compute: limits of memory, time and files, and on Linux a filter of
system calls (seccomp) that leaves reading and writing what is open, and memory.

No file can be opened, no socket made, no process begun from then on, by any thread. Nothing but Linux on
x86_64 and aarch64 has the filter; `locked_down` says whether it is in force.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import socket
import struct
import sys
from contextlib import suppress
from typing import NamedTuple


class _Machine(NamedTuple):
    kernel: int  # the number that the kernel knows it by
    seccomp: int  # the call itself
    allowed: tuple[int, ...]  # the calls that are left


# read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn,
# readv, writev, sched_yield, mremap, madvise, nanosleep, getpid, exit, uname, getrusage, sysinfo, times,
# sigaltstack, gettid, futex, sched_getaffinity, restart_syscall, clock_gettime, clock_getres,
# clock_nanosleep, exit_group, getcpu, getrandom, membarrier, rseq: in this order, by machine.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        317,
        (
            *(0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 35, 39, 60, 63, 98, 99, 100, 131),
            *(186, 202, 204, 219, 228, 229, 230, 231, 309, 318, 324, 334),
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        277,
        (
            *(
                63,
                64,
                57,
                80,
                62,
                222,
                226,
                215,
                214,
                134,
                135,
                139,
                65,
                66,
                124,
                216,
                233,
                101,
                172,
                93,
                160,
            ),
            *(165, 179, 153, 132, 178, 98, 123, 128, 113, 114, 115, 94, 168, 278, 283, 293),
        ),
    ),
}
_SET_MODE_FILTER, _ALL_THREADS, _NO_NEW_PRIVILEGES = 1, 1, 38
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def limit(memory: int, seconds: int) -> None:
    """Of this process: bytes of memory, seconds of the processor; no file can grow, and none is left behind
    where it dies."""
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Some systems have no limit of memory, and none may be raised.
        with suppress(OSError, ValueError):
            resource.setrlimit(what, (most, most))


def locked_down() -> bool:
    """Shut this process off from files, network and other processes for good; whether it is."""
    found = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or found is None:
        return False
    calls = found.allowed
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, found.kernel), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    # A call that is in the list leaps over the others and the refusal.
    steps += [(_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    steps += [(_RETURN, 0, 0, _FAIL), (_RETURN, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), packed)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(found.seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))
    return not (_can_connect() or _can_read())


def _can_connect() -> bool:
    try:
        socket.socket().close()
    except PermissionError:
        return False
    return True


def _can_read() -> bool:
    try:
        open("/dev/null", "rb").close()
    except PermissionError:
        return False
    return True
