"""What a cloud tells a machine about itself, as a port: a few texts by path."""

from __future__ import annotations

from typing import Protocol


class Metadata(Protocol):
    """The metadata service of the own machine. Only where the configuration names one; nothing else may ask."""

    def read(self, path: str) -> str | None:
        """Return the text at a path below ``meta-data``, None where there is nothing.

        Raises:
            ProviderUnavailable: It does not answer.
        """
        ...
