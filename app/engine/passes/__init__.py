"""One file per pass, each a frozen dataclass from Compilation to Compilation."""
