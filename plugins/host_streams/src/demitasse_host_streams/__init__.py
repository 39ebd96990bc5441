"""Streams on any machine: each is a thread of the host, and copies keep the pace of a described link."""
