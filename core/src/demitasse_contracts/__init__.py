"""What plugins give, checked against the contracts of the hooks: errors name the plugin and what is
valid. A package beside the kernel."""
