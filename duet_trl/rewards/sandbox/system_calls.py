# SPDX-License-Identifier: Apache-2.0
"""System calls that a sandboxed program may make: a seccomp filter, written out as the list of what is allowed.

A filter needs no privilege and no library. What the list leaves out fails with EPERM: sockets (hence the network),
new processes and programs, signals to and limits of other processes, tracing, mounts, shared memory. Threads work.
"""

import errno
import os
import struct
from functools import cache

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below and the kernel's name (AUDIT_ARCH) of each machine that has a filter."""
ALLOWED = """
read 0 63; write 1 64; close 3 57; fstat 5 80; newfstatat 262 79; stat 4 -; lstat 6 -; statx 332 291; lseek 8 62
poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21
epoll_wait 232 -; epoll_pwait 281 22; eventfd 284 -; eventfd2 290 19; pipe 22 -; pipe2 293 59; dup 32 23; dup2 33 -
dup3 292 24; pread64 17 67; pwrite64 18 68; readv 19 65; writev 20 66; preadv 295 69; pwritev 296 70
preadv2 327 286; pwritev2 328 287; sendfile 40 71; copy_file_range 326 285; close_range 436 436
access 21 -; faccessat 269 48; faccessat2 439 439; readlink 89 -; readlinkat 267 78; getdents 78 -; getdents64 217 61
getcwd 79 17; chdir 80 49; fchdir 81 50; umask 95 166; statfs 137 43; fstatfs 138 44; flock 73 32; fsync 74 82
fdatasync 75 83; fadvise64 221 223; getxattr 191 8; lgetxattr 192 9; fgetxattr 193 10; listxattr 194 11
llistxattr 195 12; flistxattr 196 13
mmap 9 222; mprotect 10 226; munmap 11 215; brk 12 214; mremap 25 216; msync 26 227; madvise 28 233; mincore 27 232
rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigpending 127 136; rt_sigtimedwait 128 137
rt_sigsuspend 130 133; sigaltstack 131 132; pause 34 -; alarm 37 -; setitimer 38 103; getitimer 36 102
timer_create 222 107; timer_settime 223 110; timer_gettime 224 108; timer_getoverrun 225 109; timer_delete 226 111
nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169; time 201 -
times 100 153; getrusage 98 165; getrlimit 97 163; sysinfo 99 179; uname 63 160; getrandom 318 278
getpid 39 172; getppid 110 173; gettid 186 178; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177
getresuid 118 148; getresgid 120 150; getgroups 115 158; getpgid 121 155; getpgrp 111 -; getsid 124 156
getpriority 140 141; sched_yield 24 124; sched_getaffinity 204 123; sched_getscheduler 145 120; sched_getparam 143 121
sched_get_priority_max 146 125; sched_get_priority_min 147 126; getcpu 309 168; futex 202 98; futex_waitv 449 449
set_robust_list 273 99; get_robust_list 274 100; set_tid_address 218 96; rseq 334 293; membarrier 324 283
arch_prctl 158 -; restart_syscall 219 128; wait4 61 260; waitid 247 95; exit 60 93; exit_group 231 94
socketpair 53 199; sendto 44 206; recvfrom 45 207; sendmsg 46 211; recvmsg 47 212; shutdown 48 210; getsockopt 55 209
getsockname 51 204; getpeername 52 205; ftruncate 77 46
clone 56 220; kill 62 129; tgkill 234 131; prlimit64 302 261; ioctl 16 29; fcntl 72 25; open 2 -; openat 257 56
"""
"""System calls allowed: name, number on x86_64, number on aarch64. Those of the last line with certain arguments only.
Ftruncate changes only what is open for writing."""
WRITING = """
mkdir 83 -; mkdirat 258 34; rmdir 84 -; unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276
link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36; creat 85 -; truncate 76 45; fallocate 285 47
chmod 90 -; fchmod 91 52; fchmodat 268 53; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88
"""
"""System calls that change a file system: allowed where the only one that can be written is the private folder."""
CLONE_THREAD = 0x10000
OPEN_FOR_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0x400000
"""Flags of open that create or change a file; the last is the kernel's bit for O_TMPFILE."""
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Is it a terminal and how large, bytes waiting, non-blocking, close on exec."""
FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Duplicates, flags, locks, pipe size; not F_SETOWN and F_SETSIG, which send signals to any process of the user."""
FIRST_RECENT = 424
"""System calls from this number on return "not implemented", so that the C library falls back on older ones."""

# Classic BPF: opcodes, return values, and the offsets in `struct seccomp_data` (arguments: their low halves).
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = (_RETURN, 0, 0, 0x7FFF0000), 0x00050000, 0x80000000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


@cache
def filter_program(machine: str, pid: int, *, writable: bool, threads: bool) -> bytes:
    """The filter in the kernel's form: opcode, jump if true, jump if false, operand; 2 + 1 + 1 + 4 bytes.

    Signals may go to the process `pid` only; files may be created and changed, threads started, only if asked for.
    """
    column, audit_name = MACHINES[machine]
    program = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, audit_name), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    new_thread = CLONE_THREAD if threads else 0
    checked = {
        "clone": [_argument(0), (_ANY_BIT, 0, 1, new_thread), _ALLOW, _refuse()],
        "kill": _one_of(0, pid),
        "tgkill": _one_of(0, pid),
        "prlimit64": _one_of(0, 0, pid),
        "ioctl": _one_of(1, *IOCTLS),
        "fcntl": _one_of(1, *FCNTLS),
    }
    for name, flags in (("open", 1), ("openat", 2)):
        forbidden = 0 if writable else OPEN_FOR_CHANGE
        checked[name] = [_argument(flags), (_ANY_BIT, 0, 1, forbidden), _refuse(errno.EROFS), _ALLOW]
    for name, number in system_calls(ALLOWED + WRITING * writable, column).items():
        body = checked.get(name, [_ALLOW])  # it ends in a return on every path
        program += [(_EQUAL, 0, len(body), number), *body]
    program += [(_AT_LEAST, 0, 1, FIRST_RECENT), _refuse(errno.ENOSYS), _refuse()]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def system_calls(table: str, column: int) -> dict[str, int]:
    """Name and number of the system calls in a table that the machine of that column has."""
    rows = [entry.split() for entry in table.replace("\n", ";").split(";") if entry.strip()]
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column] != "-"}


def _one_of(argument: int, *values: int) -> list[Instruction]:
    tests = [line for value in values for line in ((_EQUAL, 0, 1, value), _ALLOW)]
    return [_argument(argument), *tests, _refuse()]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _refuse(reason: int = errno.EPERM) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | reason)
