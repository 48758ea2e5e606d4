"""WHERE: the tagging system, the ILP, the search over group sizes, table sharding, baselines and plans."""
