"""Streams on any machine: each stream is a thread of the host, and copies go at the pace of a described
link."""
