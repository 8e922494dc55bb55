# SPDX-License-Identifier: Apache-2.0
"""Isolates a process for good: files (bubblewrap or Landlock), resource limits, no privileges, a system-call filter.

Inside bubblewrap, which wraps the launcher and all it forks, there is nothing but libraries and a private folder. With
"landlock" the kernel refuses every path but those libraries. With "limits" files can be read.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from pathlib import Path

from .system_calls import filter_program

PRIVATE_FOLDER = "/tmp"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
LIBRARIES = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
    *(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"),
)
"""Files that a Python program needs: the standard library, and the libraries it is linked to."""
NOBODY = 65534
MEMORY_BYTES = 1 << 30
"""Address space of a process."""
FOLDER_BYTES = 16 << 20
"""Size of the private folder, and of each file."""
OPEN_FILES, THREADS, FILES_IN_FOLDER = 64, 64, 1024

# From the kernel's headers: options of prctl, one flag of unshare and four of mount, two capabilities, Landlock.
DEATH_SIGNAL, DUMPABLE, KEEP_CAPABILITIES, SET_SECCOMP, NO_NEW_PRIVILEGES = 1, 4, 8, 22, 38
_NEW_MOUNTS, _NO_SET_ID, _NO_DEVICES, _NO_EXECUTION = 0x00020000, 2, 4, 8
_OVERRIDE_ANY_FILE, _READ_ANY_FILE = 1 << 1, 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_KINDS_OF_ACCESS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Kinds of access to files that each version of Landlock's interface knows, as a number of bits."""
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_LANDLOCK_TCP, _LANDLOCK_SCOPES = 3, 3  # bind and connect; abstract sockets and signals

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def bubblewrap_command(program: str, code: str) -> list[str]:
    """Command before Python's arguments: a nearly empty root folder, without network or other processes.

    The launcher keeps the rights to mount, with which `confine` gives every process a private folder, to become
    another user, and to kill that one's processes. OSError for a Python that the private folder would hide.
    """
    python = os.path.realpath(sys.executable)
    paths = (*LIBRARIES, python, code)
    if hidden := [path for path in paths if path.startswith(f"{PRIVATE_FOLDER}/")]:
        raise OSError(f"{hidden[0]} would be hidden: programs have their own {PRIVATE_FOLDER}")
    command = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--die-with-parent"]
    command += ["--cap-drop", "ALL"]
    for right in ("SYS_ADMIN", "SETUID", "SETGID", "DAC_READ_SEARCH", "KILL"):
        command += ["--cap-add", f"CAP_{right}"]
    for path in paths:
        command += ["--ro-bind-try", path, path]
    # not its --dev, a file system in memory that takes all the memory there is, with terminals
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    # in /dev/shm the C library keeps semaphores, which pools of threads use
    command += ["--dir", PRIVATE_FOLDER, "--symlink", PRIVATE_FOLDER, "/dev/shm", "--remount-ro", "/", "--chdir", "/"]
    return [*command, "--", python]


def confine(isolation: str, cpu_seconds: int, user: int, parent: int) -> None:
    """Isolate this process, its descriptors in place already; OSError if the kernel refuses a part of it.

    `parent` is the launcher, with which it ends; `user` is what root becomes.
    """
    os.environ.clear()
    threads = THREADS
    if isolation != "bubblewrap" and os.geteuid() != 0:
        threads += num_tasks_of_user()
    folder = "/"
    if isolation == "bubblewrap":
        folder = PRIVATE_FOLDER
        _mount_private_folder()
    elif isolation == "landlock":
        _restrict_files()
    _set_limits(cpu_seconds, threads)
    _drop_privileges(user)
    prctl(DUMPABLE, 0)  # others of the user may not trace this process
    prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.chdir(folder)
    # The kernel does not count the threads of root, who is still here only where the user cannot be changed.
    writable, threads_allowed = folder != "/", os.geteuid() != 0
    _install_seccomp(filter_program(platform.machine(), os.getpid(), writable=writable, threads=threads_allowed))


def num_tasks_of_user() -> int:
    """Threads of all processes of this user, which the kernel counts together."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                found += int((process / "stat").read_text().rpartition(")")[2].split()[17])
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return found


def _mount_private_folder() -> None:
    _check(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    options = f"size={FOLDER_BYTES},nr_inodes={FILES_IN_FOLDER},mode=1777".encode()
    flags = ctypes.c_ulong(_NO_SET_ID | _NO_DEVICES | _NO_EXECUTION)
    _check(_LIBC.mount(b"tmpfs", PRIVATE_FOLDER.encode(), b"tmpfs", flags, options), f"mount {PRIVATE_FOLDER}")


def landlock_version() -> int:
    """Version of Landlock's interface in this kernel, 0 without Landlock."""
    return max(0, _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def _restrict_files() -> None:
    """Leave this process nothing but the libraries and devices; no TCP; no signals to the outside."""
    version = landlock_version()
    files = (1 << _KINDS_OF_ACCESS.get(version, 16)) - 1
    # each version knows a longer structure
    known = [files, *[_LANDLOCK_TCP] * (version >= 4), *[_LANDLOCK_SCOPES] * (version >= 6)]
    attributes = struct.pack(f"{len(known)}Q", *known)
    rules = _LIBC.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(rules, "landlock_create_ruleset")
    for path in filter(os.path.exists, (*LIBRARIES, *DEVICES)):
        access = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else _WRITE_FILE if path in DEVICES else 0)
        place = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", access, place)
        _check(_LIBC.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(place)
    prctl(NO_NEW_PRIVILEGES, 1)
    _check(_LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _set_limits(cpu_seconds: int, threads: int) -> None:
    """Set the resource limits of this process, which it cannot raise again."""
    for kind, amount in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FOLDER_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, highest = resource.getrlimit(kind)
        amount = amount if highest == resource.RLIM_INFINITY else min(amount, highest)
        resource.setrlimit(kind, (amount, amount))


def _drop_privileges(user: int) -> None:
    """Give up all capabilities; root becomes this user, or nobody where a container has no such user.

    Root's right to read files stays, for a Python in a folder of root's: which files, the isolation decides.
    """
    kept: tuple[int, ...] = ()
    for choice in (user, NOBODY) if os.geteuid() == 0 else ():
        try:
            os.setgroups([])
            os.setresgid(choice, choice, choice)
            prctl(KEEP_CAPABILITIES, 1)
            os.setresuid(choice, choice, choice)
        except OSError:  # no such user; or a root that may not change its user has no other to lose
            continue
        kept = (_READ_ANY_FILE, _OVERRIDE_ANY_FILE)
        break
    header = struct.pack("Ii", 0x20080522, 0)
    # A container's root may have the second only; writing is the filter's to refuse.
    for rights in (*kept, 0):
        if _LIBC.capset(header, struct.pack("6I", rights, rights, 0, 0, 0, 0)) == 0:
            return
    _check(-1, "capset")


def _install_seccomp(program: bytes) -> None:
    """Install a classic BPF program (8 bytes per instruction) as the filter of all system calls to come."""
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(NO_NEW_PRIVILEGES, 1)
    prctl(SET_SECCOMP, 2, description)


def prctl(option: int, first: int, second: bytes | None = None) -> None:
    """Change a property of this process."""
    none = ctypes.c_ulong(0)
    _check(_LIBC.prctl(option, ctypes.c_ulong(first), second or none, none, none), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
