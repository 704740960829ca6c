"""The public door of the engine: inspect a model, or optimize it for a target.

Everything behind it works on paths and values: no HTTP, no database, no clock but the
benchmark's. An uploaded model must only be given to these functions inside a limited process.
"""

from app.engine.options import Options
from app.engine.target import Memory, Target

__all__ = ["Memory", "Options", "Target"]
