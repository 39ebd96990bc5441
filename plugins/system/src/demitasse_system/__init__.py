"""Probes and measurements of the machine that Demitasse runs on."""
