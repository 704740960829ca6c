"""Fingerprint of a machine for measuring: everything in its description but names."""

import hashlib
import json
from dataclasses import asdict

from app.engine.types.target import Target


def fingerprint(target: Target) -> str:
    """A short hash of a target; equal for machines whose timings mean the same."""
    facts = asdict(target)
    for name in ("name", "cpu_model", "memory_budget"):
        del facts[name]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def target_queue(target: Target) -> str:
    """The queue of workers that are such a machine."""
    return f"target:{fingerprint(target)}"
