"""What a prediction needs of a description, and does not find."""

from demitasse import missing_number as missing

__all__ = ["missing"]
