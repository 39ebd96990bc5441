"""Files that users name: whether they can be read, what they hold by their first bytes, and what the
header of an image says before it is decoded. A package beside the kernel, which does without it."""
