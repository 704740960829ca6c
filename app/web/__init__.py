"""Pages and their assets; nothing here loads anything from outside."""

from pathlib import Path

STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"
