"""Runs a function over the shards of a dataset: in processes of this machine, or on a Ray cluster."""
