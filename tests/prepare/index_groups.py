"""Shards that were scanned, made from numbers, for other processes as well."""

from energon_stream.tar.scan import ShardScan

PARTS = ("jpg", "txt", "json")


def shard(number, samples, key="{:08x}", parts=2, shuffle=2654435761):
    """Shard ``number``; its keys are not in order."""
    scan = ShardScan(f"{number}.tar")
    for sample in range(samples):
        scan.keys.append(key.format((number * samples + sample) * shuffle % (1 << 32)))
        scan.offsets.append(sample * 2048)
        scan.parts += [(sample, PARTS[part], sample * 2048 + 512 * part, 100) for part in range(parts)]
    scan.offsets.append(samples * 2048)
    return scan


def shards(numbers, samples, **options):
    return (shard(number, samples, **options) for number in numbers)
