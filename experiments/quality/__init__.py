"""What compression and replicas cost in quality, by training: many short runs that differ in one thing each."""
