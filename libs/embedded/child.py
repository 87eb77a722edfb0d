"""Becomes another program that dies with its parent. Started by path, `python -I -S child.py <parent-pid>[:<slack>] <argv...>`.

A supervisor killed with SIGKILL cannot clean up, so the kernel must: PR_SET_PDEATHSIG survives `execve` (but not fork).
It has to be set between fork and exec. `preexec_fn` would do that, but runs Python in a forked child of a process that
may have threads, which can deadlock; this small interpreter costs 20 ms instead and is always safe.

<slack> is its timer slack in nanoseconds (`libs.ports.timerslack`); a supervisor of an earlier release names none.

"Parent" means the *thread* that forked: a supervisor must run in a thread that outlives its children.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


def main(arguments: list[str]) -> None:
    """Arm the death signal, set the slack, then exec; ends with 127 and a line on stderr when the program cannot be run."""
    parent, _, slack = arguments[0].partition(":")
    argv = arguments[1:]
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if slack:
            prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(int(slack)))
    if os.getppid() != int(parent):
        os._exit(1)  # the parent died before the signal was armed: nobody would ever stop us
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)  # an ignored signal stays ignored across exec
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
