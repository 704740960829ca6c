"""`python -m benchmarks.part api|workers SETTINGS`: one part of a service; every child imports this."""

import sys


def main(part: str, settings_json: str) -> None:
    """Run until SIGTERM."""
    from app.jobs.supervisor import service_processes, supervise
    from app.settings import Settings

    settings = Settings.from_json(settings_json)
    rows = service_processes(settings, "app.api.main:run")
    supervise(settings, [row for row in rows if (row.name == "api") == (part == "api")])


if __name__ == "__main__":
    main(*sys.argv[1:])
