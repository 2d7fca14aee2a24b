"""Finds out why a store cannot be read, or is slow, and which settings suit it."""

from energon_stream.doctor.bench import BenchReport, BenchRun, Setting, bench
from energon_stream.doctor.diagnose import Diagnosis, diagnose

__all__ = ["BenchReport", "BenchRun", "Diagnosis", "Setting", "bench", "diagnose"]
