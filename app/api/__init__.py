"""HTTP: validate, hand over, translate errors."""
