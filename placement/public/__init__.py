"""Public placement benchmarks solved in their own objectives."""
