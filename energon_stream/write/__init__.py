"""Writes datasets: shards with their indices on the way, from samples, other formats and other datasets."""
