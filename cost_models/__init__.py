"""HOW LONG, HOW MUCH: measured profiles and their fits, roofline, network, memory; all give a CostTable."""
