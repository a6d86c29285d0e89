"""What mode `weak` does not stop, in sentences for people.

A program has its limits of time, memory, output and open files, and a process group that is killed with it. It runs as
the user who runs the rewards, with the files and the network of that user.
"""

from __future__ import annotations

NOT_STOPPED = (
    "It reads every file that this user can read, and changes or deletes every file that this user can change.",
    "It uses the network.",
    "It sees the other processes of this user, reads their environment and memory, and can end them and this run.",
    "Processes that leave its process group stay behind, with all that they use.",
    "Its memory is limited for each process, and the number of its processes is not limited.",
    "What it writes to folders other than its own stays there, and only the disk limits how much.",
    "Every system call is open to it, and whatever flaw of the kernel they reach.",
)


def what_weak_does_not_stop() -> str:
    """The sentences as one text, to be printed at the start of a run and in its report."""
    return "code_tests runs programs in mode weak, without isolation. A program is not stopped here: " + " ".join(
        NOT_STOPPED
    )
