"""Paths and YAML to datasets."""
