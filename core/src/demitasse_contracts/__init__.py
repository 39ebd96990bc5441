"""Checks of what plugins provide against the contracts of the hooks; errors name the plugin and what is
valid. A package beside the kernel."""
