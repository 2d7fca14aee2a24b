"""Finds out why a store cannot be read, or is slow, and which settings suit it."""

from energon_stream.tools.doctor.diagnose import Diagnosis, diagnose
from energon_stream.tools.doctor.measure import BenchReport, BenchRun, Setting, bench

__all__ = ["BenchReport", "BenchRun", "Diagnosis", "Setting", "bench", "diagnose"]
