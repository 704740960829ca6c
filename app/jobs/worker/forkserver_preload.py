"""Imported first, and only, by the process that forks children: it confines itself and dies with its worker.

Its imports take seconds, and it would otherwise notice the end of the worker after them only. The children
inherit its confinement.
"""

import os
import signal

from app.jobs.worker import confinement
from app.jobs.worker.parent_death import end_with
from app.settings import Settings, is_job_environment, parent_of_jobs
from app.telemetry import logs

PID = os.getpid()
if not is_job_environment():  # something else than `PreforkPool` started it
    os._exit(1)
MEASURES = confinement.enter()
logs.show_topics(Settings.from_environment())
end_with(parent_of_jobs(), signal.SIGKILL)  # a change of the user would end it
