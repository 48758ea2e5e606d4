"""What a placement of one group costs: loads of every resource, the critical path, throughput. Never decides anything."""
