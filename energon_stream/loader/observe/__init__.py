"""Observes a loader: counters, statistics, profiles, traces and a watchdog."""
