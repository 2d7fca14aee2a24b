"""How often stores may ask for other credentials."""

import pytest


@pytest.fixture
def renew_every(monkeypatch):
    """Sets the seconds that pass between two requests for other credentials."""

    def set_seconds(seconds):
        monkeypatch.setattr("energon_stream.storage._provider.BETWEEN_RENEWALS", seconds)

    return set_seconds
