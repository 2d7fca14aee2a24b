"""Counter-based random draws: the state of any random stream is an integer.

A draw is a pure function of ``(key, counter)``. So the counter is all that a state contains, draws can be
made in any order, and NumPy makes many at once. The mixing function is SplitMix64's finaliser (Steele, Lea,
Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). The results do not depend on the
version of NumPy or PyTorch.
"""

from __future__ import annotations

import hashlib

import numpy as np

from energon_stream.arrays import Float64Array, Int64Array, UInt64Array

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ROUND_KEYS = [np.uint64(number * 0x9E3779B97F4A7C15 % 2**64) for number in range(6)]
_TABLE_BITS = 10  # of networks that are tabulated: 8 KiB


def derive_key(*parts: int | str) -> int:
    """Make a 64-bit key from a path such as ``(seed, "leaf", 3, "slices", epoch)``. Order and types count."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(values: UInt64Array) -> UInt64Array:
    # uint64 arrays wrap on overflow without a warning; scalars would warn.
    mixed = (values ^ (values >> np.uint64(30))) * _MIX1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX2
    return mixed ^ (mixed >> np.uint64(31))


def hash_uint64(key: int, counters: Int64Array | UInt64Array) -> UInt64Array:
    """Draw one 64-bit integer per counter, in an array of the same shape."""
    return _mix(_mix(counters.astype(np.uint64) * _GAMMA + np.uint64(key)) + np.uint64(key))


def uniform(key: int, counters: Int64Array | UInt64Array) -> Float64Array:
    """Draw one ``float64`` in ``[0, 1)`` per counter (53 random bits)."""
    return (hash_uint64(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute_indices(key: int, size: int, positions: Int64Array) -> Int64Array:
    """Look up positions of a pseudo-random permutation of ``range(size)`` without building it.

    The permutation is a balanced Feistel network over the next even power of two. Its cycle is walked until
    the value falls below ``size`` (Black, Rogaway: "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
    """
    if size <= 1:
        return np.zeros_like(positions)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    half = np.uint64(half_bits)
    mask = np.uint64((1 << half_bits) - 1)

    def walk(values: UInt64Array) -> UInt64Array:
        left, right = values >> half, values & mask
        for round_key in _ROUND_KEYS:
            left, right = right, left ^ (_mix((right + round_key) ^ np.uint64(key)) & mask)
        return (left << half) | right

    # Of a small network, one step of all its values costs less than the steps of a few, one after another.
    steps = walk(np.arange(1 << 2 * half_bits, dtype=np.uint64)) if 2 * half_bits <= _TABLE_BITS else None
    values = positions.astype(np.uint64)
    pending = np.ones(values.shape, dtype=bool)
    while bool(pending.any()):
        walked = walk(values[pending]) if steps is None else steps[values[pending]]
        values[pending] = walked
        pending[pending] = walked >= np.uint64(size)
    return values.astype(np.int64)
