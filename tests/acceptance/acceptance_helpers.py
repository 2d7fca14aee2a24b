"""What several acceptance tests say the same way."""

SHUFFLED = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
"""The shuffling of all pages."""


def source(key):
    """Which dataset of the fixture ``data`` the key of a sample is of."""
    return key.split("-")[0]


def assert_share(count, share, total):
    """Check that a count is within three standard errors of its expected share."""
    error = (share * (1 - share) * total) ** 0.5
    assert abs(count - share * total) < 3 * error, f"{count} of {total}, expected {share:.0%}"
