"""The causes of figures that are short of their goals, by row and figure; ``report.py`` shows them."""

from __future__ import annotations

_WORKER = "[one core for worker and main process](profiles.md#one-worker-one-core-for-two-processes)"
_CORE = "[the client, new pages, and Python, on one core](profiles.md#1-gb-068-of-raw)"

CAUSES = {
    ("P1", "first epoch from cold, H50, 8 shards of 21 MB, one worker"): _WORKER,
    ("P1", "first epoch from cold, H50, 64 shards of 2.6 MB, one worker"): _WORKER,
    ("P1", "later epochs, H50, 64 shards of 2.6 MB, one worker"): _WORKER,
    ("P1", "first epoch from cold, H50, 64 shards of 2.6 MB, in process"): _CORE,
    (
        "P12",
        "local files, later epochs, two workers, two cores",
    ): "[two cores for three processes](profiles.md#two-local-workers-three-processes-on-two-cores)",
    (
        "P16",
        "requests a sample, 16 slices side by side, shuffle window 100",
    ): "[a request for each tar, 16 for the first batch, and 4 to open](profiles.md#requests-0015-a-sample-with-8-shards)",
    (
        "P16",
        "requests a sample, 32 slices side by side, shuffle window 1,000",
    ): "[81 requests too many, mended since; 32 for the first batch](profiles.md#requests-of-a-wide-shuffle)",
    (
        "sizes",
        "later epochs, samples of 4 kB, H50, 8 shards, in process",
    ): "[Python, 13 µs a sample](profiles.md#4-kb-samples-053-of-raw)",
    (
        "streams",
        "share of one stream's speed, later epochs, 24 streams on one rank, H50, 8 shards of 21 MB, in process",
    ): "[headers parsed one by one](profiles.md#24-streams-headers-one-by-one), and noise",
}
