"""An engine whose imports never end in the process that forks children."""

import time

from app.settings import is_job_environment

PRELOAD = ()

if is_job_environment():
    time.sleep(86_400)
