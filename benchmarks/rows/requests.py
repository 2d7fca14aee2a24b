"""P7, P8: requests and bytes over whole epochs."""

from __future__ import annotations

from bench import Bench, Measure, values

from rows.figures import (
    CUTS,
    REMOTE_PEERS,
    bytes_a_payload_byte,
    bytes_of_the_data,
    count,
    later_heads,
    later_requests,
    requests_a_sample,
)

ENDLESS = 6
OPENING = {"d40x8": 0.015, "d40x64": 0.017}  # requests a sample of one epoch
BINDS = (
    "[a request for each tar, 16 for the first batch, and 4 to open](profiles.md#requests-0015-a-sample-with-8-shards);"
    " without the 16 it would wait for 42 MB"
)


def counts(bench: Bench) -> list[Measure]:
    """P7, P8: requests and bytes over whole epochs."""
    measures = []
    for dataset, cut in CUTS.items():
        two = bench.rounds_of({n: bench.remote(n, dataset, "H50", epochs=2) for n in ("ours",)})
        names = ("ours", *REMOTE_PEERS)
        one = bench.rounds_of({n: bench.remote(n, dataset, "H50", repeat=False) for n in names})
        spec = bench.remote("ours", dataset, "H50", repeat=False, dataset_config="json_only.yaml")
        six = bench.remote("ours", dataset, "H50", epochs=ENDLESS)
        endless = values(bench.rounds_of({"ours": six}), bytes_of_the_data)
        json_only = values(bench.rounds_of({"ours": spec}), bytes_a_payload_byte)
        asked, most = values(one, requests_a_sample), values(one, count("in_flight"))
        heads, whole = values(one, later_heads), values(one, bytes_a_payload_byte)
        measures += [
            Measure(
                "P7",
                f"requests a sample, one epoch with opening, {cut}",
                "",
                OPENING[dataset],
                asked,
                binds=BINDS if dataset == "d40x64" else "",
            ),
            Measure("P7", f"requests a sample, later epochs, {cut}", "", 0.02, values(two, later_requests)),
            Measure("P7", f"HEADs after the first batch, H50, {cut}", "", 0, heads),
            Measure("P7", f"most requests in flight, H50, {cut}", "", None, most),
            Measure("P8", f"bytes a payload byte, one epoch, {cut}", "", 1.08, whole),
            Measure(
                "P8",
                f"bytes of {ENDLESS} epochs of an endless run ÷ those of its tars, {cut}",
                "",
                1.1,
                endless,
            ),
            Measure("P8", f"the same, only the JSON part wanted, {cut}", "", 0.05, json_only),
        ]
    return measures
