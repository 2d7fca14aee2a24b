"""Compares datasets, and makes datasets of others: joined, divided, or smaller."""
