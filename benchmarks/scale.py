"""P6: time and memory at 10^9 samples in 10^5 shards.

First to plan and to restore, on a made-up index; then to open real files and to the first batch
(``startup.py``).
"""

from __future__ import annotations

import statistics
import time
import tracemalloc

import numpy as np
from startup import report as report_startup

from energon_stream.schedule import LeafCursor, LeafPlan, OrderSpec, RepeatCursor, RepeatPlan, build_schedule
from energon_stream.state import dumps

SHARDS, PER_SHARD, ROUNDS = 100_000, 10_000, 7


def plan_and_take(cursor_of):
    """Milliseconds and peak bytes until the first 32 references are known."""
    starts = np.arange(0, SHARDS * PER_SHARD + 1, PER_SHARD, dtype=np.int64)
    order = OrderSpec(
        max_samples_per_sequence=100, shuffle_window=10_000, parallel_slices=16, shuffle_over_epochs=1
    )

    def run():
        schedule = build_schedule(RepeatPlan(LeafPlan(0, starts, order)), num_streams=8, stream=3, key=1)
        _, after = schedule.take(cursor_of(schedule), 32)
        return after

    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        after = run()
        times.append(1000 * (time.perf_counter() - begin))
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return statistics.median(times), peak, len(dumps(after))


def main():
    at_95_percent = RepeatCursor(7, 7, LeafCursor(7, 118_750_000, 11_875, 3))
    rows = {
        "from the start": lambda schedule: schedule.begin(),
        "at 95 % of the eighth epoch": lambda schedule: at_95_percent,
    }
    print(
        f"| {SHARDS * PER_SHARD:,} samples in {SHARDS:,} shards | ms (median of {ROUNDS}) | peak MB | cursor bytes |"
    )
    print("|---|--:|--:|--:|")
    for name, cursor_of in rows.items():
        milliseconds, peak, size = plan_and_take(cursor_of)
        print(f"| {name} | {milliseconds:.1f} | {peak / 1e6:.1f} | {size} |")
    print()
    report_startup([8, SHARDS])


if __name__ == "__main__":
    main()
