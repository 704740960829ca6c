"""Imported first, and only, by the process that forks children: it dies with its worker from then on.

Its imports take seconds, and it would otherwise notice the end of the worker after them only.
"""

import os
import signal

from app.jobs.lifeline import end_with

PID = os.getpid()
end_with(os.getppid(), signal.SIGKILL)
