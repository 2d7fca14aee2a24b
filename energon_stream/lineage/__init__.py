"""Lineage: which samples were in a step of a training, and in which steps a sample was."""
