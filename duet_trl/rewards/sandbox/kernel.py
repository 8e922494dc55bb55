# SPDX-License-Identifier: Apache-2.0
"""The Linux calls of the sandbox that Python lacks: namespaces, mounts, capabilities, Landlock, seccomp."""

import ctypes
import os
import struct
from collections.abc import Iterable

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
MOUNT_READ_ONLY, MOUNT_NO_SUID, MOUNT_NO_DEVICES, MOUNT_NO_EXEC = 1, 2, 4, 8
MOUNT_REMOUNT, MOUNT_BIND, MOUNT_RECURSIVE, MOUNT_PRIVATE = 32, 4096, 16384, 1 << 18
KEPT_MOUNT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 4096: 1 << 21}
"""Flags of a mount that a user namespace may not take off when it remounts it: in `os.statvfs`, and for `mount`."""

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_FILES_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Kinds of access to files that each version of Landlock's interface knows, as a number of bits."""
_LANDLOCK_WRITE_FILE, _LANDLOCK_READ_FILE, _LANDLOCK_READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_LANDLOCK_TCP, _LANDLOCK_SCOPES = 3, 3  # bind and connect; abstract sockets and signals
DEATH_SIGNAL, DUMPABLE, NO_NEW_PRIVILEGES, CHILD_SUBREAPER = 1, 4, 38, 36
"""Options of prctl: the signal at the end of the parent; whether others of the user may trace this process and read
its memory; whether programs it executes may have more privileges; whether it becomes the parent of its orphans."""
_KEEP_CAPABILITIES, _SET_SECCOMP = 8, 22
_READ_ANY_FILE = 1 << 2  # CAP_DAC_READ_SEARCH
_DETACH = 2

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def mount_memory(folder: str, size_bytes: int, options: str, flags: int = 0) -> None:
    """Mount a file system in memory, never with devices or set-user-id files."""
    flags |= MOUNT_NO_SUID | MOUNT_NO_DEVICES
    mount("tmpfs", folder, "tmpfs", flags, f"size={size_bytes},{options}")


def bind_read_only(source: str, target: str, *, device: bool = False) -> None:
    """Show a file or folder at another place as well, read-only."""
    mount(source, target, None, MOUNT_BIND | MOUNT_RECURSIVE)
    present = os.statvfs(target).f_flag
    flags = sum(flag for bit, flag in KEPT_MOUNT_FLAGS.items() if present & bit) | MOUNT_NO_SUID
    if not device:
        flags |= MOUNT_NO_DEVICES
    mount(None, target, None, flags | MOUNT_REMOUNT | MOUNT_BIND | MOUNT_READ_ONLY)


def make_root(folder: str, machine: str) -> None:
    """Make a mounted folder the root of the file system and let go of all that is outside it; read-only itself."""
    os.chdir(folder)
    _check(_LIBC.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    call("umount2", b".", _DETACH)
    os.chdir("/")
    flags = MOUNT_NO_SUID | MOUNT_NO_DEVICES
    mount(None, "/", None, flags | MOUNT_REMOUNT | MOUNT_BIND | MOUNT_READ_ONLY)


def drop_privileges(user: int, *, still_reads_files: bool) -> None:
    """Give up all capabilities of this process and, if it is root's, turn it into this user's and group's, for good.

    User 0 keeps root, without capabilities. With `still_reads_files` root's right to read files stays: for a process
    that Landlock confines to a few, which may be in a folder of root's.
    """
    kept = 0
    if os.geteuid() == 0 != user:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            prctl(_KEEP_CAPABILITIES, 1)
            os.setresuid(user, user, user)
            kept = _READ_ANY_FILE if still_reads_files else 0
        except PermissionError:
            pass  # a root without the right to change its user, as in some containers, has no others to lose
    header = struct.pack("Ii", 0x20080522, 0)
    call("capset", header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def install_seccomp(program: bytes) -> None:
    """Install a classic BPF program (8 bytes per instruction) as the filter of all system calls to come."""
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(NO_NEW_PRIVILEGES, 1)
    prctl(_SET_SECCOMP, 2, description)


def landlock_version() -> int:
    """Version of Landlock's interface in this kernel, 0 without Landlock."""
    return max(0, _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def restrict_files(readable: Iterable[str], devices: Iterable[str]) -> None:
    """With Landlock, leave this process nothing of the file system but these; no TCP; no signals to the outside.

    Devices stay writable as well. OSError if the kernel has no Landlock or refuses the rules.
    """
    version = landlock_version()
    _check(0 if version else -1, "landlock_create_ruleset")
    files = (1 << _LANDLOCK_FILES_BY_VERSION.get(version, 16)) - 1
    # each version knows a longer structure
    known = [files, *[_LANDLOCK_TCP] * (version >= 4), *[_LANDLOCK_SCOPES] * (version >= 6)]
    attributes = struct.pack(f"{len(known)}Q", *known)
    rules = _LIBC.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(rules, "landlock_create_ruleset")
    for path in readable:
        _allow_beneath(rules, path, _LANDLOCK_READ_FILE | _LANDLOCK_READ_FOLDER * os.path.isdir(path))
    for path in devices:
        _allow_beneath(rules, path, _LANDLOCK_READ_FILE | _LANDLOCK_WRITE_FILE)
    prctl(NO_NEW_PRIVILEGES, 1)
    _check(_LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow_beneath(rules: int, path: str, access: int) -> None:
    place = os.open(path, os.O_PATH)
    rule = struct.pack("=Qi", access, place)
    _check(_LIBC.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(place)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """The system call of that name."""
    names = [None if name is None else name.encode() for name in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_LIBC.mount(*names, ctypes.c_ulong(flags), data), f"mount {target}")


def prctl(option: int, first: int, second: bytes | int = 0) -> None:
    """Change a property of this process."""
    last = second if isinstance(second, bytes) else ctypes.c_ulong(second)
    _check(_LIBC.prctl(option, ctypes.c_ulong(first), last, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


def call(name: str, *arguments: int | bytes) -> None:
    """Call a function of the C library; OSError if it fails."""
    _check(_LIBC[name](*arguments), name)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
