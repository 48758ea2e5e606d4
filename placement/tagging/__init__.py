"""Where each operator of one group runs: the tags that are allowed, baselines, local search, the integer program."""
