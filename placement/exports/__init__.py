"""Plans as other tools read them: TorchRec's plan, a placement map, shards as CSV, pictures."""
