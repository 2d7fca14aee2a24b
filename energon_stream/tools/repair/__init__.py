"""Writes tars, however odd, anew as a sound dataset, and reports what was changed."""
