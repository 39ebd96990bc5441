"""The demitasse command."""
