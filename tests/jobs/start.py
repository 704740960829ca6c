"""What `stowplan serve` does, with settings that the environment cannot give; every child imports this."""

import sys


def main(settings_json: str) -> None:
    from app.jobs.supervisor import service_processes, supervise
    from app.serving.executor_processes import Executors
    from app.settings import Settings

    settings = Settings.from_json(settings_json)
    supervise(settings, service_processes(settings, "app.api.main:run"), Executors(settings))


if __name__ == "__main__":
    main(sys.argv[1])
