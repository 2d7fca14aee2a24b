"""Prepares datasets: scans tars, builds the index, and publishes the metadata."""
