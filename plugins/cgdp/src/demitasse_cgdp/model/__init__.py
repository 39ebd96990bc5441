"""What data parallelism takes, told beforehand (CGDP, sections 3.2 and 4.1): the definitions, and a
machine's figures for them."""
