"""Shipped test tools: dataset builders, S3 servers, fault injection, conformance suites.

Import the modules one by one, because a server needs no PyTorch and a builder no server: ``s3server`` (a
request-counting S3 stand-in), ``servers`` (LocalStack, SeaweedFS), ``proxy`` (faults before any server),
``datasets`` and ``media_files`` (builders), ``store_suite`` and ``operator_suite`` (conformance suites).
"""
