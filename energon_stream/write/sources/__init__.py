"""Datasets of other formats, as sections of rows that can be read apart from each other."""
