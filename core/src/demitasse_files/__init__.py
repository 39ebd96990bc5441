"""Files that users name: whether they can be read, what they contain by their first bytes, and what an
image's header says before it is decoded. A package beside the kernel, which does not need it."""
