"""Shipped test tools: dataset builders, S3 servers, fault injection, conformance suites."""
