"""Streams on any machine: each a thread of the host, copies at the pace of a described link."""
