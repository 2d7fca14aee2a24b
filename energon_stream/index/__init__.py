"""Indices and metadata of datasets, read and written: where each sample lies, and which shards a split part
has.
"""
