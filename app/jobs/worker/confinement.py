"""Confinement of the processes that parse and run uploaded models, on Linux.

| measure | what it takes away |
|---|---|
| environment | passwords of databases, keys of stores (`settings.environment_of_jobs`) |
| network | all interfaces: a network namespace of its own, with a user namespace where not started as root |
| user | root, where the service was started as root |
| capabilities | all, and new privileges; a process that was root keeps the one to read, within `files` |
| files | reading but what libraries and this job need, writing but its folder and the compiled kernels |
| system calls | sockets, other processes' memory, namespaces, mounts, modules, and what only exploits use |

The measures are independent of each other: where the kernel refuses one, the others hold, and the line that
is logged at the start says which is off, and why. `landlockpy` and `seccompy` speak to the kernel without a
C library; libseccomp's own binding needs one that is not installed everywhere.
"""

import ctypes
import errno
import importlib.util
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import landlockpy
import seccompy
from landlockpy import AccessFS

from app.settings import is_job_environment

UNPRIVILEGED: Final = 65534  # uid and gid of `nobody`
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT = 24, 38, 8, 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION = 0x20080522
_CAP_CHOWN, _CAP_DAC_READ_SEARCH, _CAP_SETGID, _CAP_SETUID = 0, 2, 6, 7
_TO_CHANGE_USER = (_CAP_CHOWN, _CAP_DAC_READ_SEARCH, _CAP_SETGID, _CAP_SETUID)

_READ = AccessFS.EXECUTE | AccessFS.READ_FILE | AccessFS.READ_DIR
_WRITE = (
    AccessFS.READ_FILE
    | AccessFS.READ_DIR
    | AccessFS.WRITE_FILE
    | AccessFS.TRUNCATE
    | AccessFS.MAKE_REG
    | AccessFS.MAKE_DIR
    | AccessFS.MAKE_SYM
    | AccessFS.REMOVE_FILE
    | AccessFS.REMOVE_DIR
    | AccessFS.REFER
)
_DEVICE = AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.READ_DIR | AccessFS.IOCTL_DEV
_OF_FILES = (
    AccessFS.EXECUTE | AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.IOCTL_DEV
)
# Processor, memory and drivers, but no other process.
_PROC = (
    "self",
    "cpuinfo",
    "meminfo",
    "stat",
    "sys",
    "version",
    "filesystems",
    "devices",
    "driver",
    "modules",
)
_ETC = ("ld.so.cache", "localtime", "passwd", "group", "nsswitch.conf", "OpenCL", "vulkan")
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sys"),
    *(f"/etc/{name}" for name in _ETC),
    *(f"/proc/{name}" for name in _PROC),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "dri", "nvidia*")

_FILES, _CALLS = "files", "system calls"

# Refused with EPERM; what a kernel or a processor does not have is passed over.
_REFUSED_CALLS = (
    # the network, and sockets of other processes
    *("socket", "connect", "bind", "listen"),
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp"),
    *("pidfd_getfd", "pidfd_send_signal", "perf_event_open"),
    # namespaces and file systems
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen"),
    *("fsconfig", "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at"),
    *("fanotify_init", "quotactl", "quotactl_fd", "mknod", "mknodat"),
    # parts of the kernel that models have no use for, and exploits do
    *("bpf", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("add_key", "request_key", "keyctl", "msgget", "semget", "shmget", "mq_open"),
    *("modify_ldt", "iopl", "ioperm", "vmsplice", "personality", "lookup_dcookie", "nfsservctl"),
    # the machine
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "acct", "syslog", "vhangup", "sethostname", "setdomainname"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: whether it holds, and how or why not."""

    name: str
    on: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.name} {'on' if self.on else 'OFF'} ({self.detail})"


def enter() -> tuple[Measure, ...]:
    """Confine this process, which must have one thread, as far as no job need be known.

    Its children inherit all of it.
    """
    user, rejection = unprivileged_user()
    was_root = os.geteuid() == 0
    return (
        _environment(),
        _tried("network", _leave_network),
        Measure("user", False, rejection) if user is None else _tried("user", lambda: _become(user)),
        _tried("capabilities", lambda: _drop_capabilities(keep_reading=was_root and os.getuid() != 0)),
        _tried(_FILES, _landlock_version),  # by `restrict_files`, when the job is known
        _tried(_CALLS, _seccomp_support),  # by `restrict_calls`
    )


def _environment() -> Measure:
    if is_job_environment():
        return Measure("environment", True, "only variables of libraries are kept")
    return Measure("environment", False, "it was started with the variables of the service")


def _tried(name: str, act: Callable[[], str]) -> Measure:
    if sys.platform != "linux":
        return Measure(name, False, "Linux only")
    try:
        return Measure(name, True, act())
    except (OSError, seccompy.SeccompError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Measure(name, False, reason)


def unprivileged_user() -> tuple[int | None, str]:
    """User that processes of jobs get: an uid, or None and the reason why they stay root.

    That user reads what it is given by a capability, which needs the limits on files to be safe.
    """
    if os.geteuid() != 0:
        return os.geteuid(), ""
    if not has_landlock():
        return None, "root, without privileges: another user could read files only without Landlock's limits"
    held = int(_status("CapEff"), 16)
    if any(not held >> each & 1 for each in _TO_CHANGE_USER):
        return None, "root, without privileges: the service may not change its user here"
    ranges = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    if not any(int(first) <= UNPRIVILEGED < int(first) + int(count) for first, _, count in ranges):
        return None, f"root, without privileges: the user namespace has no uid {UNPRIVILEGED}"
    return UNPRIVILEGED, ""


def hand_over(folder: Path) -> None:
    """Make a folder, or what a link points to, for the user that processes of jobs get, with all in it."""
    folder = folder.resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    user, _ = unprivileged_user()
    if os.geteuid() != 0 or user is None:
        return
    for parent, folders, files in os.walk(folder):
        for name in ("", *folders, *files):
            path = os.path.join(parent, name) if name else parent  # noqa: PTH118  thousands of kernels
            found = os.lstat(path)
            # A second name could be that of a file elsewhere.
            if found.st_uid != user and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
                os.chown(path, user, user, follow_symlinks=False)


def restrict_files(
    measures: Iterable[Measure],
    readable: Iterable[str | Path],
    writable: Iterable[str | Path],
    private: str | Path,
    packages: Iterable[str],
) -> None:
    """Let this process open only what libraries and its job need; nothing happens where that measure is off.

    Args:
        measures: what `enter` returned.
        readable: files and folders of the job.
        writable: files and folders that it may change.
        private: folder of which nothing else may be read, wherever it lies.
        packages: of Python, that are imported from outside of the interpreter's folders.

    Raises:
        LandlockError: the kernel refuses a rule.
    """
    if not _is_on(measures, _FILES):
        return
    hidden = Path(private).resolve()
    rows: Iterable[tuple[str | Path, AccessFS]] = (
        *((part, _READ) for path in _libraries(packages) for part in _without(path, hidden)),
        *((entry, AccessFS.READ_DIR) for entry in sys.path if entry and Path(entry).resolve() != Path("/")),
        *((device, _DEVICE) for name in _DEVICES for device in Path("/dev").glob(name)),
        *((given, _READ) for given in readable),
        *((given, _WRITE | AccessFS.EXECUTE) for given in writable),
    )
    with landlockpy.Ruleset(
        handled_net=landlockpy.AccessNet.NONE,  # `system calls` and `network`
        scoped=landlockpy.Scope.ABSTRACT_UNIX_SOCKET | landlockpy.Scope.SIGNAL,
    ) as rules:
        for path, access in rows:
            # A path that is missing or cannot be reached needs no rule.
            with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                is_folder = stat.S_ISDIR(Path(path).stat().st_mode)
                rules.allow_path(path, access if is_folder else access & _OF_FILES)
        rules.restrict(landlockpy.RestrictFlag.TSYNC)


def restrict_calls(measures: Iterable[Measure]) -> None:
    """Refuse the system calls of the list, in all threads; nothing happens where that measure is off."""
    if _is_on(measures, _CALLS):
        _filter().load()


def _is_on(measures: Iterable[Measure], name: str) -> bool:
    return any(measure.on for measure in measures if measure.name == name)


@cache
def has_landlock() -> bool:
    """True if the kernel, and what confines this process already, let it make rules about files."""
    try:
        with landlockpy.Ruleset():
            return True
    except OSError:
        return False


@cache
def _filter() -> seccompy.Filter:
    """The filter; made before processes are forked, for it takes longer to make than to load."""
    rules = seccompy.Filter(flags=seccompy.FilterFlag.TSYNC)
    for name in _REFUSED_CALLS:
        try:
            number = seccompy.syscall_nr(name)
        except (KeyError, ValueError, seccompy.SeccompError):
            continue
        rules.errno(number, errno.EPERM)
    # The C library takes `clone` where the kernel knows no `clone3`, whose flags a filter cannot see.
    rules.errno("clone3", errno.ENOSYS)
    for bit in range(32):
        if _NEW_NAMESPACES >> bit & 1:
            flag = (0, seccompy.CmpOp.MASKED_EQ, 1 << bit, 1 << bit)
            rules.errno("clone", errno.EPERM, args=[flag])
    return rules


def _seccomp_support() -> str:
    _ = _filter().program
    child = os.fork()  # to try it: a filter stays
    if child == 0:
        try:
            _filter().load()
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.ENOSYS, "the kernel takes no seccomp filters")
    return f"seccomp refuses {len(_REFUSED_CALLS)}"


def _landlock_version() -> str:
    if not has_landlock():
        raise OSError(errno.ENOSYS, "the kernel has no Landlock, or has it switched off")
    return f"Landlock {landlockpy.abi_version()}"


def _libraries(packages: Iterable[str]) -> Iterator[Path]:
    """Folders and files that every process reads."""
    yield from map(Path, (*_SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix))
    yield Path(sys.executable).resolve().parent.parent
    yield from (path for path in map(Path, sys.path) if path.name in ("site-packages", "dist-packages"))
    for name in packages:
        found = importlib.util.find_spec(name.partition(".")[0])
        yield from map(Path, (found.submodule_search_locations or ()) if found else ())


def _without(path: Path, private: Path) -> Iterator[Path]:
    """A folder but for another one: itself, or those of its parts that do not hold the other one."""
    real = path.resolve()
    if real == private or real.is_relative_to(private):
        return
    if not private.is_relative_to(real):
        yield path
        return
    for part in real.iterdir():
        yield from _without(part, private)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _leave_network() -> str:
    if os.geteuid() == 0:
        _check(_libc().unshare(_CLONE_NEWNET))
        return "a namespace of its own"
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    return "namespaces of its own, of the network and of users"


def _become(user: int) -> str:
    if os.getuid() == 0:
        for each in set(range(64)) - {_CAP_DAC_READ_SEARCH}:
            _libc().prctl(_PR_CAPBSET_DROP, each, 0, 0, 0)  # fails where the kernel has no more of them
        _check(_libc().prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return f"uid {os.getuid()}"


def _drop_capabilities(*, keep_reading: bool) -> str:
    """Drop all capabilities, but the one to read if it is held and needed, and refuse new privileges."""
    libc = _libc()
    kept = 1 << _CAP_DAC_READ_SEARCH if keep_reading else 0
    kept &= int(_status("CapPrm"), 16)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)  # of this process
    # Lower halves of the effective, permitted and inheritable sets; the upper halves are empty.
    data = (ctypes.c_uint32 * 6)(kept, kept, kept)
    _check(libc.capset(ctypes.byref(header), ctypes.byref(data)))
    if kept:  # also for the processes that compile, which are started anew
        _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return "none but reading, within the limits on files; no new ones" if kept else "none; no new ones"


def _status(name: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1]
