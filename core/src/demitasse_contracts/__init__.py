"""What plugins give, held against the contracts of the hooks, and the files that users name: errors
name the plugin or the file and what is valid. A package beside the kernel."""
