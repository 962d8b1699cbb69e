"""Runs a command and tells its peak memory: ``python -S run_measured.py DESCRIPTOR COMMAND ...``.

It writes to the open file ``DESCRIPTOR``: the pid of the command, and when it has ended a line of its status, its CPU seconds and the
KiB of its largest resident set. It imports next to nothing, because Linux counts what a process was before it became another program.
"""

import os
import sys

descriptor, command = int(sys.argv[1]), sys.argv[2:]
pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_CLOSE, descriptor)])
os.write(descriptor, b"%d\n" % pid)
_, status, usage = os.wait4(pid, 0)
told = (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
os.write(descriptor, b"%d %f %d\n" % told)
