"""Probes of the machine that Demitasse runs on."""
