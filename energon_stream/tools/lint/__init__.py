"""Checks datasets: tars, indices, metadata and samples, with all problems in one report."""
