# SPDX-License-Identifier: Apache-2.0
"""Shuts a process in: namespaces or Landlock, resource limits, no privileges, no environment, a system-call filter.

Two stages. The launcher prepares what all checks share (`enter`): with namespaces that is a root folder which holds
Python's standard library and nothing else, no network, and process ids of its own. Every forked process then confines
itself for good (`confine`) before it runs anything that was sent to it.
"""

import contextlib
import os
import platform
import random
import resource
import signal
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from . import kernel
from .filter import filter_program, has_filter

UNPRIVILEGED_ID = 65534
"""User and group of sandboxed processes where only one can be had: "nobody", who owns nothing."""
FIRST_OWN_ID = 0x70000000
"""Users from this number on belong to nobody and nothing. Where they can be had, every launcher has one of its own:
the kernel counts threads per user, so that a program with many would leave none to its neighbours."""
NUM_OWN_IDS = 1 << 27
PRIVATE_ROOT = ("namespaces", "bubblewrap")
"""Isolations in which a program has a file system of its own."""
PRIVATE_FOLDER = "/tmp"
SHARED_MEMORY = "/dev/shm"
"""Where the C library keeps semaphores, which pools of threads use; the private folder under another name."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
LINK, CHANNEL = 3, 4
"""Descriptors of a confined process: the link between judge and program, and the judge's channel to the outside. In a
program's process two files in memory follow on the link, `worker.INPUT` and `OUTPUT`."""


@cache
def library_is_public() -> bool:
    """Whether every user may read Python's standard library; not so in a home folder of root's."""
    library = Path(sysconfig.get_path("stdlib"))
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (library, *library.parents))


def prepare(isolation: str) -> None:
    """Work out once, before the first fork, what every process needs to confine itself.

    OSError for a Python whose standard library the private folder would hide.
    """
    hidden = [path for path in readable_paths() if path.startswith(f"{PRIVATE_FOLDER}/")]
    if hidden and isolation in PRIVATE_ROOT:
        raise OSError(f"Python's library is in {hidden[0]}, but programs have a {PRIVATE_FOLDER} of their own")
    library_is_public()
    if isolation == "namespaces" and has_filter():
        filter_program(platform.machine(), 1, writable=True, threads=True)


def fork(own_ids: int | None) -> int:
    """Fork a child; behind `enter` as process 1 of a new namespace: when it ends, the kernel ends all it started."""
    if own_ids is None:
        return os.fork()
    kernel.call("unshare", kernel.NEW_PIDS)
    child = os.fork()
    if child != 0:
        kernel.call("setns", own_ids, kernel.NEW_PIDS)
    return child


def enter() -> int:
    """Move this process into namespaces of its own; returns in a child of it, whose root is a nearly empty folder.

    What it returns is the descriptor of its process ids. Needs the right to administrate the system, or a kernel that
    lets its users make user namespaces: else an OSError.
    """
    user, group = os.getuid(), os.getgid()
    spaces = kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_HOSTNAME
    try:
        kernel.call("unshare", spaces)
    except PermissionError:
        kernel.call("unshare", spaces | kernel.NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{UNPRIVILEGED_ID} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{UNPRIVILEGED_ID} {group} 1")
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        os._exit(0)
    kernel.prctl(kernel.DEATH_SIGNAL, signal.SIGKILL)
    own_ids = os.open("/proc/self/ns/pid", os.O_RDONLY)
    kernel.mount(None, "/", None, kernel.MOUNT_RECURSIVE | kernel.MOUNT_PRIVATE)
    _build_root()
    return own_ids


@cache
def readable_paths() -> list[str]:
    """What a Python program needs of the file system: the standard library and the libraries it is linked to."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib", *LIBRARIES]
    kept: list[str] = []
    for path in dict.fromkeys(paths):
        inside_another = any(path.startswith(f"{other}/") and not os.path.islink(other) for other in paths)
        if os.path.exists(path) and not inside_another:
            kept.append(path)
    return kept


def package_folders() -> list[str]:
    """Folders of installed packages inside `readable_paths`, which programs do not get to see."""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} | {"/usr/lib/python3"}
    folders = [f"{root}/{name}" for root in sorted(roots) for name in PACKAGE_FOLDERS]
    return [folder for folder in folders if os.path.isdir(folder)]


def _build_root() -> None:
    root = "/proc"  # hidden by what is mounted over it; every system has it, and nothing in it is needed below
    kernel.mount_memory(root, 1 << 20, "mode=755")
    for path in (*readable_paths(), *DEVICES):
        target = Path(root + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
        else:
            if os.path.isdir(path):
                target.mkdir(exist_ok=True)
            else:
                target.touch()
            kernel.bind_read_only(path, str(target), device=path in DEVICES)
    for folder in package_folders():
        kernel.mount_memory(root + folder, 1 << 12, "mode=755", kernel.MOUNT_READ_ONLY)
    Path(root + PRIVATE_FOLDER).mkdir(exist_ok=True)
    Path(root + SHARED_MEMORY).symlink_to(PRIVATE_FOLDER)
    kernel.make_root(root, platform.machine())


def choose_user() -> int:
    """A user for the programs of a launcher, which no other process has where the kernel lets this one choose."""
    last = FIRST_OWN_ID + NUM_OWN_IDS
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if os.geteuid() == 0 and first <= FIRST_OWN_ID and last <= first + count:
            return random.SystemRandom().randrange(FIRST_OWN_ID, last)
    return UNPRIVILEGED_ID


def num_tasks_of_user() -> int:
    """Threads of all processes of this user, which the kernel counts together."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if process.stat().st_uid == os.getuid():
                found += int((process / "stat").read_text().rpartition(")")[2].split()[17])
    return found


def confine(isolation: str, limits: dict[str, Any], parent: int, user: int) -> None:
    """Shut this process in for good, its descriptors in place already; OSError if the kernel refuses a part of it.

    With "namespaces" it is a child of `fork`, with "bubblewrap" inside it. `parent` is the launcher,
    0 where it cannot be seen, `user` what root becomes.
    """
    os.environ.clear()
    private_root = isolation in PRIVATE_ROOT
    if isolation == "namespaces":
        kernel.call("unshare", kernel.NEW_MOUNTS | kernel.NEW_IPC)
        options = f"mode=700,uid={user},gid={user},nr_inodes=1024"
        kernel.mount_memory(PRIVATE_FOLDER, limits["folder_bytes"], options, kernel.MOUNT_NO_EXEC)
    elif isolation == "landlock":
        kernel.restrict_files(readable_paths(), DEVICES)
    set_limits(limits)
    user = user if isolation != "limits" or library_is_public() else os.geteuid()
    kernel.drop_privileges(user, still_reads_files=isolation == "landlock")
    kernel.prctl(kernel.DUMPABLE, 0)
    kernel.prctl(kernel.DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.chdir(PRIVATE_FOLDER if private_root else "/")
    if has_filter():
        # The kernel does not count the threads of root, who is still here only where the user cannot be changed.
        threads = os.geteuid() != 0
        kernel.install_seccomp(filter_program(platform.machine(), os.getpid(), writable=private_root, threads=threads))
    else:
        kernel.prctl(kernel.NO_NEW_PRIVILEGES, 1)


def set_limits(limits: dict[str, Any]) -> None:
    """Set the resource limits of this process, none of which it can raise again."""
    for kind, amount in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["folder_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["threads"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, highest = resource.getrlimit(kind)
        amount = amount if highest == resource.RLIM_INFINITY else min(amount, highest)
        resource.setrlimit(kind, (amount, amount))
